"""Checks that decide whether runs show what the paper claims: pure functions of the runs, thresholds stated.

A check answers with what was measured and with yes or no; where runs are missing it answers nothing.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from fedhyper.lab.paper.experiments import VARIANTS
from fedhyper.lab.paper.results import Results, needed
from fedhyper.lab.results.groups import Stat, traffic

CLOSE = 0.01  # a point: "comparable", "aligns closely"
MOST = 0.5  # of the cells of a grid
WORTH = 0.01  # "improves accuracy by 1 % - 5 %"
LARGE = 0.10  # of "almost 15 %"
FASTER = 0.8  # of the other's rounds
NEGLIGIBLE_SECONDS, NEGLIGIBLE_BYTES = 0.05, 0.001
EXP_RANGE, EXP_SHARE = (0.999, 1.5), 0.95


class Found(NamedTuple):
    """What a check saw: ``holds`` is None when the runs it needs are not there."""

    holds: bool | None
    ours: str
    why: str


MISSING = Found(None, "–", "the runs it needs are not there")


# --- words -----------------------------------------------------------------------------------------------------


def percent(stat: Stat) -> str:
    """``81.2 ± 0.4 %``."""
    spread = "" if stat.std is None else f" ± {100 * stat.std:.2f}"
    return f"{100 * stat.mean:.2f}{spread} %"


def points(value: float) -> str:
    """A difference of fractions, in points."""
    return f"{100 * value:+.2f}"


# --- checks -----------------------------------------------------------------------------------------------------


def above_best(results: Results, task: str, *, ours: str, rivals: tuple[str, ...]) -> Found:
    """Final accuracy above the best rival's."""
    mine = results.final(task, ours)
    theirs = {rival: stat for rival in rivals if (stat := results.final(task, rival))}
    if mine is None or len(theirs) < len(rivals):
        return MISSING
    best = max(theirs, key=lambda rival: theirs[rival].mean)
    gain, least = mine.mean - theirs[best].mean, needed(mine, theirs[best])
    said = f"{points(gain)} ({percent(mine)}; {VARIANTS[best].label} {percent(theirs[best])})"
    return Found(gain >= least, said, f"{points(gain)} points, {points(least)} needed to tell")


def earlier(results: Results, task: str, *, ours: str, rivals: tuple[str, ...], share: float) -> Found:
    """Mean accuracy over the first ``share`` of the rounds above every rival's."""
    mine = results.early(task, ours, share)
    theirs = {rival: stat for rival in rivals if (stat := results.early(task, rival, share))}
    if mine is None or len(theirs) < len(rivals):
        return MISSING
    best = max(theirs, key=lambda rival: theirs[rival].mean)
    gain, least = mine.mean - theirs[best].mean, needed(mine, theirs[best])
    rival = f"{VARIANTS[best].label} {percent(theirs[best])}"
    said = f"{percent(mine)} on average over the first {share:.0%} of rounds; {rival}"
    return Found(gain >= least, said, f"{points(gain)} points, {points(least)} needed to tell")


def comparable(results: Results, task: str, *, ours: str, rival: str) -> Found:
    """Not more than a point below the rival in final and in early accuracy."""
    finals = results.final(task, ours), results.final(task, rival)
    early = results.early(task, ours), results.early(task, rival)
    if finals[0] is None or finals[1] is None or early[0] is None or early[1] is None:
        return MISSING
    late_gain, early_gain = finals[0].mean - finals[1].mean, early[0].mean - early[1].mean
    said = f"final {points(late_gain)}, first half {points(early_gain)} against {VARIANTS[rival].label}"
    return Found(min(late_gain, early_gain) >= -CLOSE, said, "comparable: not more than 1 point below in either")


def close_to(results: Results, task: str, *, ours: str, rival: str) -> Found:
    """Final accuracies within a point of each other."""
    mine, theirs = results.final(task, ours), results.final(task, rival)
    if mine is None or theirs is None:
        return MISSING
    gain = mine.mean - theirs.mean
    return Found(abs(gain) <= CLOSE, f"{points(gain)} ({percent(mine)}; {percent(theirs)})", "close: within 1 point")


def sooner(results: Results, task: str, *, ours: str, rivals: tuple[str, ...], level: float | None = None) -> Found:
    """Reaches an accuracy in at most 0.8 × the rounds of every rival: ``level``, or else what all of them reach."""
    finals = [results.final(task, one) for one in (ours, *rivals)]
    known = [stat.mean for stat in finals if stat is not None]
    if len(known) < len(finals):
        return MISSING
    aim = level if level is not None and level <= min(known) else 0.95 * min(known)
    taken = {one: results.rounds_to(task, one, aim) for one in (ours, *rivals)}
    said = ", ".join(f"{VARIANTS[one].label} {'never' if t is None else f'{t:.0f}'}" for one, t in taken.items())
    mine = taken[ours]
    quick = mine is not None and all(t is None or mine <= FASTER * t for t in (taken[rival] for rival in rivals))
    return Found(quick, f"rounds to {aim:.1%}: {said}", "sooner: in at most 0.8 × the other's rounds")


def times_faster(results: Results, task: str, *, ours: str, at_least: float) -> Found:
    """Reaches 95 % of FedAvg's final accuracy in at most 1/``at_least`` of FedAvg's rounds."""
    final = results.final(task, "fedavg")
    if final is None or not results.runs(task, ours):
        return MISSING
    aim = 0.95 * final.mean
    mine, theirs = results.rounds_to(task, ours, aim), results.rounds_to(task, "fedavg", aim)
    if theirs is None:
        return Found(None, f"FedAvg does not reach {aim:.1%} on every seed", "nothing to compare with")
    label = VARIANTS[ours].label
    if mine is None:
        return Found(
            False, f"rounds to {aim:.1%}: {label} never, FedAvg {theirs:.0f}", "95 % of FedAvg's final accuracy"
        )
    said = f"{theirs / mine:.2f} ×: rounds to {aim:.1%}: {label} {mine:.0f}, FedAvg {theirs:.0f}"
    return Found(theirs >= at_least * mine, said, f"at least {at_least:g} × to 95 % of FedAvg's final accuracy")


def ordered(results: Results, task: str, *, best_first: tuple[str, ...]) -> Found:
    """Final accuracies in this order, each step distinguishable."""
    finals = [results.final(task, one) for one in best_first]
    known = [stat for stat in finals if stat is not None]
    if len(known) < len(finals):
        return MISSING
    said = ", ".join(f"{VARIANTS[one].label} {percent(stat)}" for one, stat in zip(best_first, known, strict=True))
    steps = [a.mean - b.mean >= needed(a, b) for a, b in pairwise(known)]
    return Found(all(steps), said, f"{sum(steps)} of {len(steps)} steps of the order are large enough to tell")


def _gains(results: Results, task: str) -> dict[str, float]:
    pairs = {level: (results.final(task, "g+cl", level), results.final(task, "fedavg", level)) for level in
             results.levels(task, "fedavg")}  # fmt: skip
    return {level: a.mean - b.mean for level, (a, b) in pairs.items() if a is not None and b is not None}


def most_cells(results: Results, task: str) -> Found:
    """In more than half of the grid G+CL is at least a point above FedAvg."""
    gains = _gains(results, task)
    if not gains:
        return MISSING
    better = sum(gain >= WORTH for gain in gains.values())
    worse = sum(gain <= -WORTH for gain in gains.values())
    said = f"≥ 1 point better in {better} of {len(gains)} cells, ≥ 1 point worse in {worse}; median "
    return Found(better > MOST * len(gains), said + points(median(gains.values())), "most: more than half of the cells")


def worst_rates(results: Results, task: str) -> Found:
    """From the smallest pair of rates the gain is at least 10 points."""
    gains = _gains(results, task)
    lowest = next((level for level in gains if level.startswith("α 0.5, ")), None)  # rows and columns ascend
    if lowest is None:
        return MISSING
    before, after = results.final(task, "fedavg", lowest), results.final(task, "g+cl", lowest)
    assert before is not None
    assert after is not None
    said = f"{points(gains[lowest])} at {lowest} ({percent(before)} → {percent(after)})"
    return Found(gains[lowest] >= LARGE, said, "large: at least 10 points")


def fedavg_span(results: Results, task: str, *, low: float, high: float) -> Found:
    """The worst and best cell of FedAvg, each within 2 points of the paper's."""
    finals = [stat.mean for level in results.levels(task, "fedavg") if (stat := results.final(task, "fedavg", level))]
    if not finals:
        return MISSING
    fits = abs(min(finals) - low) <= 2 * CLOSE and abs(max(finals) - high) <= 2 * CLOSE
    return Found(fits, f"{min(finals):.1%} to {max(finals):.1%}", "both ends within 2 points; depends on the model")


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


def skew_gain(results: Results, task: str, *, level: str) -> Found:
    """G+CL above FedAvg at one level of skew."""
    mine, theirs = results.final(task, "g+cl", level), results.final(task, "fedavg", level)
    if mine is None or theirs is None:
        return MISSING
    gain, least = mine.mean - theirs.mean, needed(mine, theirs)
    said = f"{percent(theirs)} / {percent(mine)} ({points(gain)})"
    return Found(gain >= least, said, f"{points(gain)} points, {points(least)} needed to tell")


def most_at_most_skewed(results: Results, task: str) -> Found:
    """Of the three Dirichlet levels the gain is largest at 0.25."""
    gains = {level: gain for level, gain in _gains(results, task).items() if level.startswith("Dirichlet")}
    if len(gains) < 3:
        return MISSING
    said = ", ".join(f"{level} {points(gain)}" for level, gain in gains.items())
    largest = max(gains, key=lambda level: gains[level])
    return Found(largest == "Dirichlet 0.25", said, f"the largest gain is at {largest}")


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
