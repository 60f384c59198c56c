"""Which figures a set of runs calls for: each is there when the runs have the data for it, and not otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from fedhyper.lab.results.curves import curve_rows
from fedhyper.lab.results.figures.clients import client_figure, guard_figure, partition_figure, target_figure
from fedhyper.lab.results.figures.curves import curve_figures
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.figures.robustness import robustness_figures
from fedhyper.lab.results.groups import Group
from fedhyper.lab.results.series import Series


def make_figures(groups: Sequence[Group], series: Sequence[Series], *, legend: bool) -> list[Figure]:
    """All figures of these groups, in reading order; ``legend`` puts one into each chart, for files without a page."""
    rows = curve_rows(series)
    found = list(robustness_figures(groups))
    found += curve_figures(rows, series, legend)
    found += target_figure(series)
    found += client_figure(series)
    found += guard_figure(series)
    found += partition_figure(groups)
    order = ["Robustness", "Accuracy", "Rounds to target", "Learning rates", "Loss", "Clients", "Guard", "Data"]
    return sorted(found, key=lambda figure: order.index(figure.section))
