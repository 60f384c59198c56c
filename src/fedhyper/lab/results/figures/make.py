"""Which figures a set of runs calls for: each is there when the runs have the data for it, and not otherwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fedhyper.lab.results.curves import curve_rows
from fedhyper.lab.results.figures.clients import client_figure, guard_figure, partition_figure, target_figure
from fedhyper.lab.results.figures.curves import curve_figures
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.figures.robustness import robustness_figures
from fedhyper.lab.results.groups import Group
from fedhyper.lab.results.parts import MAX_PARTS, Part
from fedhyper.lab.results.series import Series


def part_figures(parts: Sequence[Part], *, legend: bool) -> list[Figure]:
    """The figures of every part, the first ``MAX_PARTS`` of them; a key says its part when there are several."""
    if len(parts) == 1:
        return make_figures(parts[0].groups, parts[0].series, legend=legend)
    return [
        replace(figure, key=f"part{index + 1}-{figure.key}", part=index)
        for index, part in enumerate(parts[:MAX_PARTS])
        for figure in make_figures(part.groups, part.series, legend=legend)
    ]


def make_figures(
    groups: Sequence[Group], series: Sequence[Series], *, legend: bool, only: Collection[str] | None = None
) -> list[Figure]:
    """All figures of these groups, in reading order; ``legend`` puts one into each chart, for files without a page.

    ``only``: the keys of those that are wanted, for a chart takes a tenth of a second to make.
    """
    rows = curve_rows(series)
    found = list(robustness_figures(groups))
    found += curve_figures(rows, series, legend, only)
    found += target_figure(series)
    found += client_figure(series)
    found += guard_figure(series)
    found += partition_figure(groups)
    order = ["Robustness", "Accuracy", "Rounds to target", "Learning rates", "Loss", "Privacy", "Clients"]
    order += ["Guard", "Data"]
    wanted = [figure for figure in found if only is None or figure.key in only]
    return sorted(wanted, key=lambda figure: order.index(figure.section))
