"""Which lines a chart has; what each shows at each round is in ``curves``.

Up to eight groups are drawn as they are, mean ± standard deviation over seeds. More than that is a sweep, and a
sweep is drawn as one line a method: the median over its settings, with a band from the 10th to the 90th percentile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedhyper.lab.results.comparing import is_problem
from fedhyper.lab.results.groups import Group, as_label, describe, differing, legend_name
from fedhyper.lab.results.metrics import quantile
from fedhyper.lab.results.stored import StoredRun

MAX_SERIES = 8  # as many as the palette has colours that everybody can tell apart


@dataclass(frozen=True)
class Series:
    """One line of every chart: ``runs`` that share ``label``; ``spread`` over their seeds or their settings."""

    label: str
    runs: list[StoredRun]
    groups: list[Group]
    over: str  # "seeds" | "settings"

    def accuracies(self) -> list[float]:
        """Final accuracy of every setting, the mean over its seeds; fractions, those that were measured."""
        return [stat.mean for group in self.groups if (stat := group.accuracy())]


def different_runs(groups: Sequence[Group]) -> int:
    """How many of these settings are runs of their own: where a method does not read a rate the others are its bits."""
    return len({tuple(sorted(run.weights or run.name for run in group.runs)) for group in groups})


def make_series(groups: Sequence[Group]) -> tuple[list[Series], str | None]:
    """The lines to draw and, when groups had to be put together or left out, a sentence that says how."""
    if len(groups) <= MAX_SERIES:
        return [Series(group.label, group.runs, [group], "seeds") for group in groups], None
    keys = _series_keys(groups)
    by_value: dict[str, list[Group]] = {}
    for group in groups:
        label = legend_name(describe(group.settings, keys) or "all settings")
        by_value.setdefault(label, []).append(group)
    if len(by_value) == len(groups):  # nothing would be put together: a comparison of many methods, not a sweep
        return _best([Series(group.label, group.runs, [group], "seeds") for group in groups])
    series = [
        Series(label, [run for group in members for run in group.runs], members, "settings")
        for label, members in by_value.items()
    ]
    note = (
        f"{len(groups)} settings: each line is the median over the settings of one {' and '.join(keys) or 'sweep'}, "
        "its band runs from the 10th to the 90th percentile."
    )
    if len(series) > MAX_SERIES:
        series = sorted(series, key=lambda s: -quantile(s.accuracies() or [0.0], 0.5))[:MAX_SERIES]
        note += f" Of {len(by_value)} lines the {MAX_SERIES} with the best median are drawn."
    return series, note


def _best(series: list[Series]) -> tuple[list[Series], str]:
    """As many lines as there are colours: the highest, and FedAvg, which everything is compared with."""
    order = sorted(series, key=lambda s: -quantile(s.accuracies() or [0.0], 0.5))
    base = [s for s in order if s.runs[0].method == "fedavg"][:1]
    kept = [s for s in order if s not in base][: MAX_SERIES - len(base)] + base
    among = ", FedAvg among them" if base else ""
    note = f"Of {len(series)} lines the {MAX_SERIES} best are drawn{among}; the table has all."
    return [s for s in series if s in kept], note


def _series_keys(groups: Sequence[Group]) -> list[str]:
    """What one line stands for: the method, or else a setting with few values; never two problems in one line."""
    flats = [group.settings for group in groups]
    different = differing(flats)
    problem = [key for key in groups[0].apart if is_problem(key)]
    few = [key for key in different if len({as_label(flat.get(key)) for flat in flats}) <= MAX_SERIES]
    chosen = "method" if "method" in different else next((key for key in few if key not in problem), None)
    return [*problem, *([chosen] if chosen else [])]
