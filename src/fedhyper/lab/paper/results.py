"""What the runs of an experiment measured, by task, variant and level: the numbers that verdicts are made of.

Methods are compared by their late accuracy, the mean over the evaluations in the last fifth of the rounds, and not by
the final one: federated accuracies jump by points from one round to the next, and the paper's claims are tenths of a
point. Everything is in fractions, not per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fedhyper.lab.results.metrics import Stat, early_accuracy, first_round, late_accuracy
from fedhyper.lab.results.stored import StoredRun

LAST = 0.2  # share of the rounds over which a late accuracy is averaged
ONE_SEED = 0.005  # half a point: what a single pair of runs can tell
SEEDS = 0.002  # the least that several seeds can tell; their standard error if that is larger


@dataclass(frozen=True)
class Result:
    """One finished run."""

    task: str
    variant: str
    level: str
    seed: int
    run: StoredRun


class Results:
    """All finished runs of an experiment."""

    def __init__(self, items: Sequence[Result]) -> None:
        self.items = list(items)

    def runs(self, task: str, variant: str, level: str = "") -> list[StoredRun]:
        """The seeds of one cell of the table."""
        return [one.run for one in self.items if (one.task, one.variant, one.level) == (task, variant, level)]

    def seeds(self, seeds: set[int]) -> Results:
        """Those with one of these seeds: what has one seed is compared on that seed."""
        return Results([one for one in self.items if one.seed in seeds])

    def shared(self, task: str, variants: Sequence[str], levels: Sequence[str] = ("",)) -> Results:
        """Those of the seeds that all of these have, so that three seeds are not compared with another's one."""
        of = [
            {one.seed for one in self.items if (one.task, one.variant, one.level) == (task, variant, level)}
            for variant in variants
            for level in levels
        ]
        return self.seeds(set.intersection(*of)) if of else self

    def levels(self, task: str, variant: str) -> list[str]:
        """At which levels the variant was run."""
        return list(dict.fromkeys(one.level for one in self.items if (one.task, one.variant) == (task, variant)))

    def late(self, task: str, variant: str, level: str = "") -> Stat | None:
        """Late accuracy over seeds: that of the last fifth of the rounds."""
        return Stat.of(late_accuracy(run.rounds, (1 - LAST) * run.planned) for run in self.runs(task, variant, level))

    def early(self, task: str, variant: str, share: float = 0.5) -> Stat | None:
        """Mean accuracy over the first ``share`` of the rounds: the area under the curve, so to speak."""
        return Stat.of(early_accuracy(run.rounds, share * run.planned) for run in self.runs(task, variant))

    def rounds_to(self, task: str, variant: str, accuracy: float) -> float | None:
        """Rounds until ``accuracy``, the mean over seeds; None when a seed never gets there."""
        reached = [first_round(run.rounds, accuracy) for run in self.runs(task, variant)]
        known = [t for t in reached if t is not None]
        return fmean(known) if known and len(known) == len(reached) else None

    def per_round(self, task: str, variant: str, value: Callable[[dict[str, float]], float]) -> float | None:
        """Median of ``value`` over all rounds but the first of each run, which pays for start-up."""
        values = [value(record) for run in self.runs(task, variant) for record in run.rounds[1:]]
        return median(values) if values else None


def needed(one: Stat, other: Stat) -> float:
    """By how much two means must differ for one to count as higher: half a point with one seed, else their error."""
    if one.std is None or other.std is None:
        return ONE_SEED
    return max(SEEDS, math.sqrt(one.std**2 / one.n + other.std**2 / other.n))
