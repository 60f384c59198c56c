"""Which runs belong together, what tells them apart, and whether they may be compared at all.

Runs whose configs differ in nothing but the seed form a group, and a group is summarised by mean and standard
deviation. What differs between groups is what a chart's legend has to say, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from fedhyper.lab.results.stored import StoredRun, number, seconds_of

# How a run is carried out, not what it computes: no reason to keep two runs apart.
NOT_SCIENCE = frozenset(
    (
        *("seed", "name", "out", "workers", "threads", "device", "engine", "eval_every", "checkpoint_every"),
        *("client_metrics", "max_bad_rounds"),
        *("resume", "quiet", "json", "tensorboard"),
    )
)
# Accuracies on different tasks cannot be ranked; on unequal budgets they can only be with care.
SAME_PROBLEM = ("task", "model", "model_options", "subset", "partition")
SAME_BUDGET = (
    *("rounds", "clients", "clients_per_round", "local_epochs", "local_steps", "batch_size"),
    *("weighting", "sampling", "target_accuracy", "stop_at_target", "patience", "dtype"),
)
_JAVASCRIPT = frozenset(
    (
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString"),
        *("valueOf", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__"),
    )
)
_FIRST = ("task", "model", "method", "local_lr", "global_lr")


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (None below two values) of ``n`` values."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """The statistic of the values that exist; None when none does."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only: ``settings`` is their flat config, ``apart`` the keys in the label."""

    label: str
    settings: dict[str, Any]
    runs: list[StoredRun]
    apart: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method all runs of the group share."""
        return self.runs[0].method

    @property
    def results(self) -> list[StoredRun]:
        """The runs whose last accuracy is a result; all of them while none has ended."""
        return [run for run in self.runs if run.ended] or self.runs

    def accuracy(self) -> Stat | None:
        """Final test accuracy over seeds, a fraction."""
        return Stat.of(run.final_accuracy for run in self.results)

    def rounds_to_target(self) -> Stat | None:
        """Rounds to the target accuracy, over the seeds that reached it."""
        return Stat.of(hit[0] for run in self.results if (hit := run.to_target()))

    def seconds_to_target(self) -> Stat | None:
        """Seconds to the target accuracy, over the seeds that reached it."""
        return Stat.of(hit[1] for run in self.results if (hit := run.to_target()))

    def seconds_per_round(self) -> float | None:
        """Median seconds of training and aggregation in a round; evaluation is not the method's cost."""
        spent = [
            (record.get("seconds_train") or 0.0) + (record.get("seconds_aggregate") or 0.0)
            for run in self.runs
            for record in run.rounds
            if record.get("seconds_train") is not None
        ]
        return median(spent) if spent else None

    def bytes_per_round(self) -> float | None:
        """Mean bytes up and down in a round."""
        sent = [traffic(r) for run in self.runs for r in run.rounds if r.get("bytes_up") is not None]
        return fmean(sent) if sent else None

    def bytes_total(self) -> Stat | None:
        """Bytes up and down over the whole run, over seeds."""
        return Stat.of(sum(map(traffic, run.rounds)) or None for run in self.results)


def traffic(record: dict[str, Any]) -> float:
    """Bytes up and down in one round."""
    return float((record.get("bytes_up") or 0.0) + (record.get("bytes_down") or 0.0))


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"partition": {"kind": "iid"}}`` as ``{"partition.kind": "iid"}``; lists become their written form."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            scalar = value is None or isinstance(value, str | int | float)
            flat[prefix + key] = value if scalar else str(value)
    return flat


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Keys whose values are not all the same, the ones people look for first in front."""
    keys = sorted({key for flat in settings for key in flat} - NOT_SCIENCE)
    different = [key for key in keys if len({as_label(flat.get(key)) for flat in settings}) > 1]
    return sorted(different, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))


def as_label(value: object) -> str:
    """A config value as people write it: ``0.01`` and ``1e-4``, ``1`` for ``1.0``, never longer than a line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:79] + "…"


def make_groups(runs: Sequence[StoredRun]) -> list[Group]:
    """Runs grouped by everything in their configs but the seed, each group labelled by what tells it apart."""
    by_settings: dict[tuple[tuple[str, str], ...], list[StoredRun]] = {}
    for run in runs:
        flat = flatten(run.config)
        key = tuple(sorted((k, as_label(v)) for k, v in flat.items() if k not in NOT_SCIENCE))
        # A run without a readable config cannot be known to equal another.
        by_settings.setdefault(key or (("", run.name),), []).append(run)
    members = list(by_settings.values())
    flats = [flatten(group[0].config) for group in members]
    keys = _telling_apart(flats)
    labels = [describe(flat, keys) or _fallback(group[0]) for flat, group in zip(flats, members, strict=True)]
    groups = [
        Group(label, flat, group, tuple(keys))
        for label, flat, group in zip(_distinct(labels), flats, members, strict=True)
    ]
    return sorted(groups, key=_order(keys))


def _telling_apart(flats: Sequence[dict[str, Any]]) -> list[str]:
    """The fewest differing keys, in order, that separate all groups: what ``method`` implies is not repeated."""
    chosen: list[str] = []
    parts = 1
    different = differing(flats)
    for key in sorted(different, key=lambda key: key != "method"):
        finer = len({tuple(as_label(flat.get(k)) for k in [*chosen, key]) for flat in flats})
        if finer > parts:
            chosen, parts = [*chosen, key], finer
    return chosen


def describe(settings: dict[str, Any], keys: Sequence[str]) -> str:
    """The values of ``keys`` in words: ``fedavg, local_lr 0.01``."""
    parts = [as_label(settings.get(key)) if key == "method" else f"{key} {as_label(settings.get(key))}" for key in keys]
    return ", ".join(parts)


def _fallback(run: StoredRun) -> str:
    return run.method if run.config else run.name


def legend_name(label: str) -> str:
    """``label``, in quotation marks if every JavaScript object has a member so called: Vega looks names up in one."""
    return f"“{label}”" if label in _JAVASCRIPT else label


def _distinct(labels: Sequence[str]) -> list[str]:
    # Values cut to a line, or configs nobody could read, may write the same label twice.
    seen: dict[str, int] = {}
    result = []
    for label in map(legend_name, labels):
        seen[label] = seen.get(label, 0) + 1
        result.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return result


def _order(keys: Sequence[str]) -> Callable[[Group], tuple[Any, ...]]:
    def order(group: Group) -> tuple[Any, ...]:
        # FedAvg first: it is what the others are read against. Numbers by size, the rest by name.
        values = [group.settings.get(key) for key in keys if key != "method"]
        sizes = tuple((0, v, "") if (v := number(value)) is not None else (1, 0.0, as_label(value)) for value in values)
        return (group.method != "fedavg", group.method, sizes)

    return order


def same_problem(one: Group, other: Group) -> bool:
    """Whether two groups solve the same problem on the same budget, so that a difference is the method's."""
    keys = {k for k in one.settings.keys() | other.settings.keys() if is_problem(k) or k in SAME_BUDGET}
    return all(as_label(one.settings.get(key)) == as_label(other.settings.get(key)) for key in keys)


def baseline(group: Group, groups: Sequence[Group]) -> list[Group]:
    """The FedAvg groups this one may be measured against, those with its own initial rates if there are any."""
    candidates = [g for g in groups if g.method == "fedavg" and g is not group and same_problem(group, g)]
    same_rates = [
        g for g in candidates if all(g.settings.get(k) == group.settings.get(k) for k in ("local_lr", "global_lr"))
    ]
    return same_rates or candidates


def is_problem(key: str) -> bool:
    """Whether a setting decides what is learned from what, so that results across it cannot be ranked."""
    return key.split(".")[0] in SAME_PROBLEM


def comparability(groups: Sequence[Group]) -> list[str]:
    """What stands in the way of comparing these groups, one plain sentence each; empty when nothing does."""
    flats = [group.settings for group in groups]
    different = differing(flats)
    values = {key: "; ".join(sorted({as_label(flat.get(key)) for flat in flats})[:6]) for key in different}
    notes = [
        f"Not comparable: {key} differs ({values[key]}). Do not rank accuracies across it."
        for key in different
        if is_problem(key)
    ]
    notes += [
        f"Unequal conditions: {key} differs ({values[key]}). Compare with care."
        for key in different
        if key in SAME_BUDGET
    ]
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


def total_seconds(run: StoredRun) -> float:
    """Seconds of all recorded rounds."""
    return sum(map(seconds_of, run.rounds))
