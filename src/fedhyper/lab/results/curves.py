"""What each series shows at each round, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedhyper.lab.results.metrics import Stat, number, quantile, seconds_of, traffic
from fedhyper.lab.results.series import Series
from fedhyper.lab.results.stored import StoredRun

MAX_POINTS = 150  # a line is about 700 pixels wide
_BANDED = ("accuracy", "test_loss", "train_loss", "global_lr", "local_lr", "hypergrad", "cosine", "epsilon")


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
        # FedExP and the decays record zeros: their rate is moved by something else, and a line at zero would deny it.
        self.led = any(record.get("hypergrad") for record in run.rounds)

    def value(self, field: str, t: int) -> float | None:
        if field == "hypergrad" and not self.led:
            return None
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


def clients_differ(run: StoredRun) -> bool:
    """Whether the clients of a round had rates of their own in any round of ``run``."""
    return any(record.get("local_lr_min") != record.get("local_lr_max") for record in run.rounds)


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
