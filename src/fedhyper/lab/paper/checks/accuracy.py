"""Checks that decide whether runs show what the paper claims: pure functions of the runs, thresholds stated.

A check answers with what was measured and with yes or no; where runs are missing it answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from fedhyper.lab.paper.results import Results, needed
from fedhyper.lab.paper.variants import VARIANTS
from fedhyper.lab.results.metrics import Stat

CLOSE = 0.01  # a point: "comparable", "aligns closely"
FASTER = 0.8  # of the other's rounds


class Found(NamedTuple):
    """What a check saw: ``holds`` is None when the runs it needs are not there.

    ``unsure``: the difference is smaller, either way, than these seeds can tell; then ``holds`` is False.
    """

    holds: bool | None
    ours: str
    why: str
    unsure: bool = False


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
    """Late accuracy (the last fifth of the rounds) above every rival's, each on the seeds that both have."""
    found = _least_gain(results, task, ours, rivals, lambda some, variant: some.late(task, variant))
    if found is None:
        return MISSING
    best, mine, theirs = found
    return compare(
        mine, theirs, f"{points(mine.mean - theirs.mean)} ({percent(mine)}; {VARIANTS[best].label} {percent(theirs)})"
    )


def earlier(results: Results, task: str, *, ours: str, rivals: tuple[str, ...], share: float) -> Found:
    """Mean accuracy over the first ``share`` of the rounds above every rival's, each on the seeds that both have."""
    found = _least_gain(results, task, ours, rivals, lambda some, variant: some.early(task, variant, share))
    if found is None:
        return MISSING
    best, mine, theirs = found
    rival = f"{VARIANTS[best].label} {percent(theirs)}"
    return compare(mine, theirs, f"{percent(mine)} on average over the first {share:.0%} of rounds; {rival}")


def _least_gain(
    results: Results, task: str, ours: str, rivals: tuple[str, ...], measure: Callable[[Results, str], Stat | None]
) -> tuple[str, Stat, Stat] | None:
    """The rival over which ``ours`` gains least beyond what can be told, and both; None when one is missing."""
    pairs: dict[str, tuple[Stat, Stat]] = {}
    for rival in rivals:
        both = results.shared(task, (ours, rival))
        mine, theirs = measure(both, ours), measure(both, rival)
        if mine is None or theirs is None:
            return None
        pairs[rival] = mine, theirs
    worst = min(pairs, key=lambda rival: pairs[rival][0].mean - pairs[rival][1].mean - needed(*pairs[rival]))
    return worst, *pairs[worst]


def compare(mine: Stat, theirs: Stat, said: str) -> Found:
    """Whether one mean is above the other, with the reason: ``+0.31 points, +0.20 needed to tell, 3 seeds``."""
    gain, enough = mine.mean - theirs.mean, needed(mine, theirs)
    seeds = "one seed" if mine.n == 1 else f"{mine.n} seeds"
    why = f"{points(gain)} points, {points(enough)} needed to tell, {seeds}"
    return Found(gain >= enough, said, why, unsure=abs(gain) < enough)


def comparable(results: Results, task: str, *, ours: str, rival: str) -> Found:
    """Not more than a point below the rival in late and in early accuracy."""
    results = results.shared(task, (ours, rival))
    finals = results.late(task, ours), results.late(task, rival)
    early = results.early(task, ours), results.early(task, rival)
    if finals[0] is None or finals[1] is None or early[0] is None or early[1] is None:
        return MISSING
    late_gain, early_gain = finals[0].mean - finals[1].mean, early[0].mean - early[1].mean
    said = f"last fifth {points(late_gain)}, first half {points(early_gain)} against {VARIANTS[rival].label}"
    return Found(min(late_gain, early_gain) >= -CLOSE, said, "comparable: not more than 1 point below in either")


def close_to(results: Results, task: str, *, ours: str, rival: str) -> Found:
    """Late accuracies within a point of each other."""
    results = results.shared(task, (ours, rival))
    mine, theirs = results.late(task, ours), results.late(task, rival)
    if mine is None or theirs is None:
        return MISSING
    gain = mine.mean - theirs.mean
    return Found(abs(gain) <= CLOSE, f"{points(gain)} ({percent(mine)}; {percent(theirs)})", "close: within 1 point")


def sooner(results: Results, task: str, *, ours: str, rivals: tuple[str, ...], level: float | None = None) -> Found:
    """Reaches an accuracy in at most 0.8 × the rounds of every rival: ``level``, or else what all of them reach."""
    results = results.shared(task, (ours, *rivals))
    finals = [results.late(task, one) for one in (ours, *rivals)]
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
    """Reaches 95 % of FedAvg's late accuracy in at most 1/``at_least`` of FedAvg's rounds."""
    results = results.shared(task, (ours, "fedavg"))
    final = results.late(task, "fedavg")
    if final is None or not results.runs(task, ours):
        return MISSING
    aim = 0.95 * final.mean
    mine, theirs = results.rounds_to(task, ours, aim), results.rounds_to(task, "fedavg", aim)
    if theirs is None:
        return Found(None, f"FedAvg does not reach {aim:.1%} on every seed", "nothing to compare with")
    label = VARIANTS[ours].label
    if mine is None:
        return Found(
            False, f"rounds to {aim:.1%}: {label} never, FedAvg {theirs:.0f}", "95 % of FedAvg's late accuracy"
        )
    said = f"{theirs / mine:.2f} ×: rounds to {aim:.1%}: {label} {mine:.0f}, FedAvg {theirs:.0f}"
    return Found(theirs >= at_least * mine, said, f"at least {at_least:g} × to 95 % of FedAvg's late accuracy")


def ordered(results: Results, task: str, *, best_first: tuple[str, ...]) -> Found:
    """Late accuracies in this order, each step distinguishable."""
    results = results.shared(task, best_first)
    finals = [results.late(task, one) for one in best_first]
    known = [stat for stat in finals if stat is not None]
    if len(known) < len(finals):
        return MISSING
    said = ", ".join(f"{VARIANTS[one].label} {percent(stat)}" for one, stat in zip(best_first, known, strict=True))
    steps = [a.mean - b.mean >= needed(a, b) for a, b in pairwise(known)]
    return Found(all(steps), said, f"{sum(steps)} of {len(steps)} steps of the order are large enough to tell")
