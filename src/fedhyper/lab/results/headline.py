"""The first sentence of a report: what came out, and whether the difference is more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedhyper.lab.results.comparing import fedavg_groups, same_problem
from fedhyper.lab.results.groups import Group
from fedhyper.lab.results.metrics import Stat, number, percent, quantile
from fedhyper.lab.results.parts import MAX_PARTS, Part
from fedhyper.lab.results.series import Series, different_runs
from fedhyper.lab.results.tables import spread


def headline(groups: Sequence[Group], series: Sequence[Series]) -> tuple[str, str]:
    """A sentence to put in large type, and one that says what stands behind it."""
    if not any(group.accuracy() for group in groups):
        return "No accuracy was measured", "None of these runs got as far as an evaluation."
    if not all(same_problem(groups[0], group) for group in groups):
        return (
            f"{len(groups)} settings, side by side",
            "They differ in more than the method, so this page ranks nothing; see the notes below.",
        )
    if any(one.over == "settings" for one in series):
        return _sweep(series)
    title, why = _alone(groups[0]) if len(groups) == 1 else _comparison(groups)
    return title, why + _private(groups)


def apart(parts: Sequence[Part]) -> tuple[str, str]:
    """The same for a page of several parts, which are not ranked against each other."""
    count = sum(len(part.groups) for part in parts)
    shown = f" The first {MAX_PARTS} are drawn, the tables have all." if len(parts) > MAX_PARTS else ""
    return (
        f"{count} settings, side by side",
        f"They are of {len(parts)} kinds that cannot be ranked against each other; each has its own part.{shown}",
    )


def _alone(group: Group) -> tuple[str, str]:
    accuracy = group.accuracy()
    assert accuracy is not None
    done = max((run.rounds[-1]["round"] for run in group.runs if run.rounds), default=0)
    reached = f"{spread(accuracy, 1, 100.0)} %"
    title = f"{group.method} reaches {reached} in {done} rounds"
    if _diverged(accuracy):
        title = f"{group.method} diverged: {reached} after {done} rounds"
    return (
        title,
        "Mean and standard deviation over seeds." if accuracy.std is not None else "One seed: no spread known.",
    )


def _private(groups: Sequence[Group]) -> str:
    """What private runs spent, the most that a seed of each did; nothing where none is private."""
    spent = {}
    for group in groups:
        told = [r["epsilon"] for run in group.runs for r in run.rounds if r.get("epsilon") is not None]
        if told:
            delta = number(group.settings.get("privacy.delta"))
            spent[group.label] = f"ε = {max(told):.3g}" + (f" at δ = {delta:g}" if delta is not None else "")
    if len(groups) == 1:
        return "".join(f" Private: {words}." for words in spent.values())
    return f" Private: {'; '.join(f'{label} {words}' for label, words in spent.items())}." if spent else ""


def _comparison(groups: Sequence[Group]) -> tuple[str, str]:
    results = {group.label: stat for group in groups if (stat := group.accuracy())}
    measured = [group for group in groups if group.label in results]
    best = max(measured, key=lambda group: results[group.label].mean)
    mine = results[best.label]
    title = f"{best.label} ends at {spread(mine, 1, 100.0)} %"
    # FedAvg at its best rate, not at the one the winner started from. Where FedAvg wins, the best of the others.
    rivals = [g for g in fedavg_groups(best, groups) if g.label in results]
    rivals = rivals or [g for g in measured if g.method != best.method] or [g for g in measured if g is not best]
    if not rivals:
        return title, "Nothing else in these runs has a result to compare it with."
    rival = max(rivals, key=lambda group: results[group.label].mean)
    theirs = results[rival.label]
    points = 100 * (mine.mean - theirs.mean)
    noise = _noise(mine, theirs)
    if _diverged(theirs):
        title += f", {rival.label} diverged"
        why = f"It ends at {spread(theirs, 1, 100.0)} %."
    elif noise is not None and points < noise:
        title += f", level with {rival.label}"
        why = f"The difference of {points:.1f} points is within the spread over seeds."
    else:
        title += f", {points:.1f} points above {rival.label}"
        why = (
            "One seed each: the spread is not known, so small differences may be noise."
            if noise is None
            else f"{min(mine.n, theirs.n)} seeds each; the spread over seeds is {noise:.1f} points."
        )
    tuned = len([g for g in measured if g.method == "fedavg"])
    if rival.method == "fedavg" and tuned > 1:
        why = f"Compared with FedAvg's best of {tuned} settings. {why}"
    return title, why + _speed(best, rival)


def _diverged(stat: Stat) -> bool:
    """Whether this is no result: a share of the examples is at least 0, and an R² of -10 predicts nothing."""
    return stat.mean < -10


def _noise(mine: Stat, theirs: Stat) -> float | None:
    """One standard deviation of the difference of two runs, in points."""
    if mine.std is None or theirs.std is None:
        return None
    return 100 * math.hypot(mine.std, theirs.std)


def _speed(best: Group, rival: Group) -> str:
    fast, slow = best.rounds_to_target(), rival.rounds_to_target()
    target = best.runs[0].target_accuracy
    if fast is None or target is None:
        return ""
    if slow is None:
        return f" It passes {percent(target, 0)} after {fast.mean:.0f} rounds; {rival.label} never does."
    return f" It passes {percent(target, 0)} after {fast.mean:.0f} rounds, {rival.label} after {slow.mean:.0f}."


def _sweep(series: Sequence[Series]) -> tuple[str, str]:
    finals = {one.label: one.accuracies() for one in series}
    ranked = sorted((label for label in finals if finals[label]), key=lambda label: -quantile(finals[label], 0.5))
    middle = {label: percent(quantile(finals[label], 0.5)) for label in ranked}
    words = [f"{label} {middle[label]} (worst {percent(min(finals[label]))})" for label in ranked]
    first = ranked[0]
    title = f"{first}: {middle[first]} in the median of {len(finals[first])} settings"
    title += f", {percent(min(finals[first]))} at worst"
    why = f"Median final accuracy over all settings: {'; '.join(words)}."
    why += "".join(
        f" The {len(one.groups)} settings of {one.label} are one run, bit for bit."
        for one in series
        if len(one.groups) > 1 and different_runs(one.groups) == 1
    )
    for one in series:
        if one.runs[0].method == "fedavg" and one.label != first and finals[one.label]:
            why += f" {one.label} in its best of {len(finals[one.label])} settings: {percent(max(finals[one.label]))}."
    return title, why
