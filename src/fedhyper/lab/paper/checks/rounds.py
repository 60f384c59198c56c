"""Checks of what happens within rounds: how the global rate moves, and what a round costs."""

from __future__ import annotations

from statistics import fmean

from fedhyper.lab.paper.checks.accuracy import MISSING, Found
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import VARIANTS
from fedhyper.lab.results.metrics import traffic

NEGLIGIBLE_SECONDS, NEGLIGIBLE_BYTES = 0.05, 0.001
EXP_RANGE, EXP_SHARE = (0.999, 1.5), 0.95


def _rates_of(results: Results, task: str, variant: str) -> list[float]:
    """The global rate by round, the mean over seeds."""
    runs = results.runs(task, variant)
    curves = [[float(r["global_lr"]) for r in run.rounds if r.get("global_lr") is not None] for run in runs]
    return [fmean(values) for values in zip(*curves, strict=False)]


def rises_then_falls(results: Results, task: str) -> Found:
    """G's rate peaks in the first third, above 1, and ends below its peak by a tenth."""
    curve = _rates_of(results, task, "g")
    if len(curve) < 3:
        return MISSING
    peak = max(curve)
    when = curve.index(peak) + 1
    said = f"peak {peak:.2f} in round {when} of {len(curve)}, last {curve[-1]:.2f}"
    return Found(peak > 1 and when <= len(curve) / 3 and curve[-1] <= 0.9 * peak, said, "peak in the first third")


def halves(results: Results, task: str) -> Found:
    """G's rate is above 1 on average in the first half and below 1 in the second."""
    curve = _rates_of(results, task, "g")
    if len(curve) < 2:
        return MISSING
    middle = len(curve) // 2
    first, second = fmean(curve[:middle]), fmean(curve[middle:])
    return Found(first > 1 > second, f"mean {first:.2f}, then {second:.2f}", "means of the halves above and below 1")


def fedexp_range(results: Results, task: str) -> Found:
    """FedExP's rate lies in 1.0 to 1.5 in at least 95 % of the rounds."""
    curve = _rates_of(results, task, "fedexp")
    if not curve:
        return MISSING
    inside = sum(EXP_RANGE[0] <= rate <= EXP_RANGE[1] for rate in curve) / len(curve)
    said = f"{min(curve):.2f} to {max(curve):.2f}; {inside:.0%} of rounds in 1.0–1.5"
    return Found(inside >= EXP_SHARE, said, "at least 95 % of the rounds")


def round_seconds(record: dict[str, float]) -> float:
    """Training and aggregation; evaluation is not the method's cost."""
    return record["seconds_train"] + record["seconds_aggregate"]


def _overhead(results: Results, task: str, variant: str) -> tuple[float, float] | None:
    """Seconds and bytes of a round above FedAvg's, as fractions."""

    seconds = [results.per_round(task, one, round_seconds) for one in (variant, "fedavg")]
    sent = [results.per_round(task, one, traffic) for one in (variant, "fedavg")]
    if not seconds[0] or not seconds[1] or not sent[0] or not sent[1]:
        return None
    return seconds[0] / seconds[1] - 1, sent[0] / sent[1] - 1


def _spend(overhead: tuple[float, float]) -> str:
    return f"{overhead[0]:+.1%} seconds, {overhead[1]:+.2%} bytes a round"


def negligible(results: Results, task: str, *, variant: str) -> Found:
    """Under 5 % of the seconds (what timings here can tell) and 0.1 % of the bytes of a FedAvg round."""
    overhead = _overhead(results, task, variant)
    if overhead is None:
        return MISSING
    small = overhead[0] <= NEGLIGIBLE_SECONDS and overhead[1] <= NEGLIGIBLE_BYTES
    return Found(small, _spend(overhead), "negligible: at most 5 % of the seconds, 0.1 % of the bytes")


def costs_more(results: Results, task: str, *, variant: str, than: str) -> Found:
    """More seconds or more bytes than another scheduler."""
    mine, other = _overhead(results, task, variant), _overhead(results, task, than)
    if mine is None or other is None:
        return MISSING
    more = mine[0] > other[0] + 0.01 or mine[1] > other[1] + NEGLIGIBLE_BYTES
    return Found(more, f"{_spend(mine)}; {VARIANTS[than].label} {_spend(other)}", "more seconds or more bytes")
