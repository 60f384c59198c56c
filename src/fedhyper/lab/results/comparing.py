"""Which groups of runs may be compared, with what, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from fedhyper.lab.results.groups import RATES, Group, as_label, differing, finds_rates
from fedhyper.lab.results.metrics import number
from fedhyper.lab.results.stored import StoredRun

# Accuracies on different tasks cannot be ranked; on unequal budgets they can only be with care.
SAME_PROBLEM = ("task", "model", "model_options", "subset", "partition")
SAME_BUDGET = (
    *("rounds", "clients", "clients_per_round", "local_epochs", "local_steps", "batch_size"),
    *("weighting", "sampling", "target_accuracy", "stop_at_target", "patience", "validation", "dtype", "augment"),
)


def same_problem(one: Group, other: Group) -> bool:
    """Whether two groups solve the same problem on the same budget, so that a difference is the method's."""
    keys = {k for k in one.settings.keys() | other.settings.keys() if is_problem(k) or k in SAME_BUDGET}
    return all(as_label(one.settings.get(key)) == as_label(other.settings.get(key)) for key in keys)


def fedavg_groups(group: Group, groups: Sequence[Group]) -> list[Group]:
    """The FedAvg groups this one may be measured against, whatever their rates; none for a FedAvg group itself."""
    if group.method == "fedavg":
        return []
    return [g for g in groups if g.method == "fedavg" and same_problem(group, g)]


def baseline(group: Group, groups: Sequence[Group]) -> list[Group]:
    """The FedAvg groups whose cost this one's is measured against: those with its own initial rates if there are any.

    For accuracies take ``fedavg_groups`` and the best of them: FedAvg at the same bad rate is no rival.
    """
    candidates = fedavg_groups(group, groups)
    if finds_rates(group.method):
        return candidates
    same_rates = [g for g in candidates if all(g.settings.get(k) == group.settings.get(k) for k in RATES)]
    return same_rates or candidates


def is_problem(key: str) -> bool:
    """Whether a setting decides what is learned from what, so that results across it cannot be ranked."""
    return key.split(".")[0] in SAME_PROBLEM


def comparability(groups: Sequence[Group]) -> list[str]:
    """What stands in the way of comparing these groups, one plain sentence each; empty when nothing does."""
    flats = [group.settings for group in groups]
    different = differing(flats)
    values = {key: "; ".join(sorted({as_label(flat.get(key)) for flat in flats})[:6]) for key in different}
    problem, budget = (
        ", ".join(f"{key} differs ({values[key]})" for key in different if wanted(key))
        for wanted in (is_problem, SAME_BUDGET.__contains__)
    )
    notes = [f"Not comparable: {problem}. Do not rank accuracies across it."] if problem else []
    notes += [f"Unequal conditions: {budget}. Compare with care."] if budget else []
    notes += _partition_notes(groups)
    machines = {
        (as_label(env.get("machine")), as_label(env.get("platform")), as_label(env.get("cpu_count")))
        for group in groups
        for run in group.runs
        if (env := run.env)
    }
    if len(machines) > 1:
        notes.append(f"Seconds are not comparable: the runs come from {len(machines)} different machines.")
    counts = sorted({len(group.runs) for group in groups})
    if len(counts) > 1:
        notes.append(f"Unequal numbers of seeds: between {counts[0]} and {counts[-1]} runs behind each line.")
    return notes


def _partition_notes(groups: Sequence[Group]) -> list[str]:
    hashes: dict[tuple[str, ...], set[str]] = {}
    for group in groups:
        data = tuple(
            f"{key}={as_label(value)}"
            for key, value in sorted(group.settings.items())
            if key.split(".")[0] in ("task", "partition", "clients")
        )
        for run in group.runs:
            if run.partition and run.partition.get("sha256"):
                key = (*data, as_label(run.config.get("seed")))
                hashes.setdefault(key, set()).add(as_label(run.partition["sha256"]))
    if any(len(found) > 1 for found in hashes.values()):
        return ["Not comparable: runs with the same partition settings and seed hold different partitions of the data."]
    return []


def unfinished(runs: Sequence[StoredRun]) -> list[str]:
    """One sentence for each run that did not come to its end, or that ended badly."""
    sentences = []
    for run in runs:
        planned = number(run.config.get("rounds"))
        of = f" of {planned:g}" if planned else ""
        done = run.rounds[-1]["round"] if run.rounds else 0
        # A killed run could not say so: its summary still reads as it did while it was alive.
        status = "running or killed" if run.status == "running" else as_label(run.status)
        if run.status != "finished":
            sentences.append(f"{run.name}: {status} after round {done}{of}.")
    return sentences
