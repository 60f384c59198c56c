"""Lines to draw: what each series of a chart shows at each round, thinned to what a screen can show.

Up to eight groups are drawn as they are, mean ± standard deviation over seeds. More than that is a sweep, and a
sweep is drawn as one line a method: the median over its settings, with a band from the 10th to the 90th percentile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhyper.lab.results.groups import Group, Stat, as_label, describe, differing, is_problem, legend_name, traffic
from fedhyper.lab.results.stored import StoredRun, number, seconds_of

MAX_SERIES = 8  # as many as the palette has colours that everybody can tell apart
MAX_POINTS = 150  # a line is about 700 pixels wide
_BANDED = ("accuracy", "test_loss", "train_loss", "global_lr", "local_lr", "hypergrad", "cosine")


@dataclass(frozen=True)
class Series:
    """One line of every chart: ``runs`` that share ``label``; ``spread`` over their seeds or their settings."""

    label: str
    runs: list[StoredRun]
    groups: list[Group]
    over: str  # "seeds" | "settings"


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
        series = sorted(series, key=lambda s: -quantile(_finals(s) or [0.0], 0.5))[:MAX_SERIES]
        note += f" Of {len(by_value)} lines the {MAX_SERIES} with the best median are drawn."
    return series, note


def _best(series: list[Series]) -> tuple[list[Series], str]:
    """As many lines as there are colours: the highest, and FedAvg, which everything is compared with."""
    order = sorted(series, key=lambda s: -quantile(_finals(s) or [0.0], 0.5))
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


def _finals(series: Series) -> list[float]:
    return [value for run in series.runs if (value := run.final_accuracy) is not None]


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the two nearest of at least one value."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def curve_rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One row for each series and drawn round; a quantity is a triple ``x``, ``x_lo``, ``x_hi``, absent if unknown.

    ``seconds`` and ``megabytes`` are cumulative, averaged over the runs at the same round: a point (x, y) is what
    the average run had reached, and what it had spent, by that round.
    """
    rows = []
    for index, one in enumerate(series):
        tracks = [_Track(run) for run in one.runs if run.rounds]
        for t in _drawn_rounds(tracks):
            row: dict[str, Any] = {"s": index, "series": one.label, "round": t}
            present = [track for track in tracks if t in track.at]
            row["runs"] = len(present)
            for spent in ("seconds", "megabytes"):
                stat = Stat.of(getattr(track, spent)[t] for track in present)
                row[spent] = _rounded(stat.mean) if stat else None
            for field in _BANDED:
                held = tracks if field == "accuracy" else present
                values = [v for track in held if (v := track.value(field, t)) is not None]
                row |= _band(field, values, one.over)
            if len(one.groups) == 1:
                row |= _client_band(present, t)
            rows.append({key: value for key, value in row.items() if value is not None})
    return rows


class _Track:
    """One run, by round, with running totals."""

    def __init__(self, run: StoredRun) -> None:
        self.at = {record["round"]: record for record in run.rounds}
        self.seconds: dict[int, float] = {}
        self.megabytes: dict[int, float] = {}
        seconds = sent = 0.0
        for record in run.rounds:
            seconds += seconds_of(record)
            sent += traffic(record)
            self.seconds[record["round"]] = seconds
            self.megabytes[record["round"]] = sent / 1e6
        # A diverged run has a result: leaving it out of the mean would flatter the method that lost it.
        self.held = run.final_accuracy if run.status == "diverged" else None
        self.last = run.rounds[-1]["round"]

    def value(self, field: str, t: int) -> float | None:
        if t in self.at:
            return number(self.at[t].get(field))
        return self.held if field == "accuracy" and t > self.last else None


def _drawn_rounds(tracks: Sequence[_Track]) -> list[int]:
    """At most MAX_POINTS rounds: of each stretch the last one that was evaluated, or else the last."""
    every = sorted({t for track in tracks for t in track.at})
    stretch = -(-len(every) // MAX_POINTS) if every else 1
    measured = {t for track in tracks for t in track.at if track.at[t].get("accuracy") is not None}
    chosen = []
    for start in range(0, len(every), stretch):
        part = every[start : start + stretch]
        chosen.append(next((t for t in reversed(part) if t in measured), part[-1]))
    return chosen


def _band(field: str, values: Sequence[float], over: str) -> dict[str, float]:
    stat = Stat.of(values)
    if stat is None:
        return {}
    if over == "settings":
        low, middle, high = (quantile(values, q) for q in (0.1, 0.5, 0.9))
    else:
        spread = stat.std or 0.0
        low, middle, high = stat.mean - spread, stat.mean, stat.mean + spread
        if field in ("global_lr", "local_lr") and low <= 0:
            low = min(values)  # a rate is drawn on a log scale, where mean - std may not exist
    row = {field: _rounded(middle)}
    if stat.n > 1:
        row |= {f"{field}_lo": _rounded(low), f"{field}_hi": _rounded(high)}
    return row


def _client_band(tracks: Sequence[_Track], t: int) -> dict[str, float]:
    low = [v for track in tracks if (v := number(track.at[t].get("local_lr_min"))) is not None and v > 0]
    high = [v for track in tracks if (v := number(track.at[t].get("local_lr_max"))) is not None]
    if not low or not high or min(low) == max(high):
        return {}
    return {"local_lr_lo": _rounded(min(low)), "local_lr_hi": _rounded(max(high))}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def bound_rows(series: Sequence[Series], which: str) -> list[dict[str, Any]]:
    """The band a FedHyper rate must stay in, ``[lr0 / bound, lr0 * bound]``, for series with one initial rate.

    ``which`` is ``global_lr`` (the paper's bound 3) or ``local_lr`` (10). Plain ``fedhyper`` is left out: it sets
    its own limits.
    """
    side, default = ("global", 3.0) if which == "global_lr" else ("local", 10.0)
    rows = []
    for index, one in enumerate(series):
        if len(one.groups) != 1 or not _adapts(one.groups[0].method, which):
            continue
        settings = one.groups[0].settings
        initial = number(settings.get(which))
        bound = number(settings.get(f"options.{side}_bound")) or default
        if initial and initial > 0 and bound > 1:
            middle = 1.0 if settings.get("options.bounds") == "absolute" else initial
            limits = (middle / bound, middle * bound)
            rows += [{"s": index, "series": one.label, "limit": _rounded(limit)} for limit in limits]
    return rows


def _adapts(method: str, which: str) -> bool:
    # fedhyper-g+cl, fedhyper-cl-released: the parts before a dash say which rate moves
    parts = method.removeprefix("fedhyper-").split("+") if method.startswith("fedhyper-") else []
    moving = {part.split("-")[0] for part in parts}
    return bool(moving & ({"g"} if which == "global_lr" else {"sl", "cl"}))
