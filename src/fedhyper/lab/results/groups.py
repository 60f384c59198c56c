"""Which runs belong together, and what tells them apart.

Runs whose configs differ in nothing but the seed form a group, and a group is summarised by mean and standard
deviation. What differs between groups is what a chart's legend has to say, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedhyper.lab.results.metrics import Stat, number, traffic
from fedhyper.lab.results.stored import StoredRun

# How a run is carried out, not what it computes: no reason to keep two runs apart.
NOT_SCIENCE = frozenset(
    (
        *("seed", "name", "out", "workers", "threads", "device", "engine", "eval_every", "checkpoint_every"),
        *("client_metrics", "max_bad_rounds"),
        *("resume", "quiet", "json", "track"),
    )
)
_JAVASCRIPT = frozenset(
    (
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString"),
        *("valueOf", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__"),
    )
)
RATES = ("local_lr", "global_lr")
_FIRST = ("task", "model", "method", *RATES)


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


def settings_of(run: StoredRun) -> dict[str, Any]:
    """Its flat config; and, where it was extended and so is another run than its config says, what it was begun with.

    Nothing else makes runs of one config differ on purpose, so this is what tells them apart in every table.
    """
    begun = number((run.summary or {}).get("begun_with_rounds"))
    return flatten(run.config) | ({} if begun is None or not run.config else {"begun_with_rounds": begun})


def settings_key(run: StoredRun) -> tuple[tuple[str, str], ...]:
    """Equal for runs of one group."""
    flat = settings_of(run)
    key = tuple(sorted((k, as_label(v)) for k, v in flat.items() if k not in NOT_SCIENCE))
    return key or (("", run.name),)  # a run without a readable config cannot be known to equal another


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Keys whose values are not all the same, the ones people look for first in front."""
    keys = sorted({key for flat in settings for key in flat} - NOT_SCIENCE)
    different = [key for key in keys if len({as_label(flat.get(key)) for flat in settings}) > 1]
    return sorted(different, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))


def as_label(value: object) -> str:
    """A config value as people write it: ``0.01`` and ``1e-4``, ``1`` for ``1.0``, never longer than a line."""
    if value is None or value == "[]":
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
        by_settings.setdefault(settings_key(run), []).append(run)
    members = [_one_a_seed(group) for group in by_settings.values()]
    flats = [settings_of(group[0]) for group in members]
    keys = _telling_apart(flats)
    named = [describe(flat, _varied(flat, keys, flats)) for flat in flats]
    labels = [name or _fallback(group[0]) for name, group in zip(named, members, strict=True)]
    groups = [
        Group(label, flat, group, tuple(keys))
        for label, flat, group in zip(_distinct(labels), flats, members, strict=True)
    ]
    return sorted(groups, key=_order(keys))


def _one_a_seed(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Of runs with the same config and the same seed the one that got furthest: the others say nothing new."""
    by_seed: dict[object, StoredRun] = {}
    for run in runs:
        seed = run.config.get("seed")
        key = run.path if seed is None else as_label(seed)
        by_seed[key] = max(by_seed.get(key, run), run, key=lambda r: (r.ended, len(r.rounds)))
    return list(by_seed.values())


def copies(runs: Sequence[StoredRun], groups: Sequence[Group]) -> list[str]:
    """Sentences on the runs that ``make_groups`` left out because another has their config and seed."""
    every = [run for group in groups for run in group.runs]
    counted = {id(run) for run in every}
    twins = {(settings_key(run), as_label(run.config.get("seed"))): run for run in every}
    same: list[StoredRun] = []
    other: list[StoredRun] = []
    for run in runs:
        if id(run) in counted:
            continue
        twin = twins[settings_key(run), as_label(run.config.get("seed"))]
        unlike = run.ended and twin.ended and run.weights and twin.weights and run.weights != twin.weights
        (other if unlike else same).append(run)
    found = []
    if same:
        what = (
            "repeats another's config and seed and is" if len(same) == 1 else "repeat others' config and seed and are"
        )
        found.append(f"Of {len(runs)} runs {len(same)} {what} not counted: a copy is no further seed ({_named(same)}).")
    if other:
        what = "has another's config and seed but" if len(other) == 1 else "have others' config and seed but"
        found.append(
            f"Of {len(runs)} runs {len(other)} {what} other weights, so something else differs (versions, the machine, "
            f"a plug-in, the engine); not counted ({_named(other)})."
        )
    return found


def extended(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence on the runs that are others than their configs say, for they were begun with other rounds."""
    found = [run for run in runs if "begun_with_rounds" in settings_of(run)]
    if not found:
        return []
    was, its = ("was", "its") if len(found) == 1 else ("were", "their")
    what = f"{was} begun with fewer or more rounds, and chose {its}"
    return [f"{len(found)} of {len(runs)} runs {what} rate for those; a new one has other bits ({_named(found)})."]


def _named(runs: Sequence[StoredRun]) -> str:
    return ", ".join(run.name for run in runs[:3]) + (", …" if len(runs) > 3 else "")


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


def _varied(settings: dict[str, Any], keys: Sequence[str], flats: Sequence[dict[str, Any]]) -> list[str]:
    """``keys`` without what is one and the same in all groups of this method: options, and rates it does not read."""
    alike = [flat for flat in flats if flat.get("method") == settings.get("method")]
    unread = RATES if finds_rates(str(settings.get("method"))) else ()
    varied = {k for k in keys if len({as_label(flat.get(k)) for flat in alike}) > 1}
    return [k for k in keys if k in varied or not (k.startswith("options.") or k in unread)]


def finds_rates(method: str) -> bool:
    """Whether a method has no initial rates, whatever its config says."""
    return method.partition("+")[0] == "fedhyper"


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
