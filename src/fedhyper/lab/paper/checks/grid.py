"""Checks over a grid of initial rates and over levels of skew: FedHyper-G+CL against FedAvg in every cell."""

from __future__ import annotations

from statistics import median

from fedhyper.lab.paper.checks.accuracy import CLOSE, MISSING, Found, compare, percent, points
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import VARIANTS
from fedhyper.lab.results.metrics import Stat

MOST = 0.5  # of the cells of a grid
WORTH = 0.01  # "improves accuracy by 1 % - 5 %"
LARGE = 0.10  # of "almost 15 %"


def gains_over_fedavg(results: Results, task: str) -> dict[str, float]:
    """G+CL's accuracy minus FedAvg's at every level both were run at; fractions."""
    pairs = {level: (results.late(task, "g+cl", level), results.late(task, "fedavg", level)) for level in
             results.levels(task, "fedavg")}  # fmt: skip
    return {level: a.mean - b.mean for level, (a, b) in pairs.items() if a is not None and b is not None}


def most_cells(results: Results, task: str) -> Found:
    """In more than half of the grid G+CL is at least a point above FedAvg."""
    gains = gains_over_fedavg(results, task)
    if not gains:
        return MISSING
    better = sum(gain >= WORTH for gain in gains.values())
    worse = sum(gain <= -WORTH for gain in gains.values())
    said = f"≥ 1 point better in {better} of {len(gains)} cells, ≥ 1 point worse in {worse}; median "
    return Found(better > MOST * len(gains), said + points(median(gains.values())), "most: more than half of the cells")


def worst_rates(results: Results, task: str) -> Found:
    """From the smallest pair of rates the gain is at least 10 points."""
    gains = gains_over_fedavg(results, task)
    lowest = next((level for level in gains if level.startswith("α 0.5, ")), None)  # rows and columns ascend
    if lowest is None:
        return MISSING
    before, after = results.late(task, "fedavg", lowest), results.late(task, "g+cl", lowest)
    assert before is not None
    assert after is not None
    said = f"{points(gains[lowest])} at {lowest} ({percent(before)} → {percent(after)})"
    return Found(gains[lowest] >= LARGE, said, "large: at least 10 points")


def fedavg_span(results: Results, task: str, *, low: float, high: float) -> Found:
    """The worst and best cell of FedAvg, each within 2 points of the paper's."""
    finals = [stat.mean for level in results.levels(task, "fedavg") if (stat := results.late(task, "fedavg", level))]
    if not finals:
        return MISSING
    fits = abs(min(finals) - low) <= 2 * CLOSE and abs(max(finals) - high) <= 2 * CLOSE
    return Found(fits, f"{min(finals):.1%} to {max(finals):.1%}", "both ends within 2 points; depends on the model")


def skew_gain(results: Results, task: str, *, level: str) -> Found:
    """G+CL above FedAvg at one level of skew."""
    both = results.shared(task, ("g+cl", "fedavg"), (level,))
    mine, theirs = both.late(task, "g+cl", level), both.late(task, "fedavg", level)
    if mine is None or theirs is None:
        return MISSING
    said = f"FedAvg {percent(theirs)}, G+CL {percent(mine)} ({points(mine.mean - theirs.mean)})"
    return compare(mine, theirs, said)


def most_at_most_skewed(results: Results, task: str) -> Found:
    """Of the three Dirichlet levels the gain is largest at 0.25."""
    levels = [level for level in results.levels(task, "fedavg") if level.startswith("Dirichlet")]
    alike = results.shared(task, ("fedavg", "g+cl"), levels)
    gains = {level: gain for level, gain in gains_over_fedavg(alike, task).items() if level in levels}
    if len(gains) < 3:
        return MISSING
    said = ", ".join(f"{level} {points(gain)}" for level, gain in gains.items())
    largest = max(gains, key=lambda level: gains[level])
    return Found(largest == "Dirichlet 0.25", said, f"the largest gain is at {largest}")


def at_own_best(results: Results, task: str, *, ours: str, rivals: tuple[str, ...]) -> Found:
    """Late accuracy above every rival's, each method at the level that is best for it."""
    best: dict[str, tuple[Stat, str]] = {}
    for one in (ours, *rivals):
        known = [(stat, level) for level in results.levels(task, one) if (stat := results.late(task, one, level))]
        if not known:
            return MISSING
        best[one] = max(known, key=lambda pair: pair[0].mean)
    rival = max(rivals, key=lambda one: best[one][0].mean)
    (mine, here), (theirs, there) = best[ours], best[rival]
    gain = points(mine.mean - theirs.mean)
    said = f"{gain} ({percent(mine)} at {here}; {VARIANTS[rival].label} {percent(theirs)} at {there})"
    return compare(mine, theirs, said)
