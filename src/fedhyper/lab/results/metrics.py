"""What a number about a run means, one definition each, for reports, the paper's pages and the benchmarks.

    final accuracy     the last test accuracy that was measured: that of the model the run leaves behind
    best accuracy      the highest that was measured (``summary.json`` only: it is chosen on the test set)
    late accuracy      the mean of those measured in the last rounds, which says less about luck: federated accuracies
                       jump by points from one round to the next. Headings say which rounds: "last fifth", "last five"
    early accuracy     the mean of those measured in the first rounds: how fast a run gets going
    rounds to target   the first round whose measured accuracy is at least the target

Accuracies are fractions of the test examples; a round that was not evaluated counts nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhyper.lab.results.stored import StoredRun


Record = dict[str, Any]  # a round, as in metrics.jsonl


def number(value: object) -> float | None:
    """``value`` as a finite float; None for anything else, booleans and numerals in strings included."""
    if type(value) is float:  # most are
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def measured(records: Sequence[Record], after: float = 0, until: float = math.inf) -> list[float]:
    """The test accuracies that were measured after round ``after`` and up to round ``until``, in their order."""
    return [r["accuracy"] for r in records if r.get("accuracy") is not None and after < r["round"] <= until]


def final_accuracy(records: Sequence[Record]) -> float | None:
    """The last test accuracy that was measured; None when none was."""
    return next(reversed(measured(records)), None)


def late_accuracy(records: Sequence[Record], after: float) -> float | None:
    """The mean test accuracy of the rounds after round ``after``; the final one where none of them was evaluated."""
    late = measured(records, after=after)
    return fmean(late) if late else final_accuracy(records)


def early_accuracy(records: Sequence[Record], until: float) -> float | None:
    """The mean test accuracy of the rounds up to round ``until``; None when none of them was evaluated."""
    early = measured(records, until=until)
    return fmean(early) if early else None


def first_round(records: Sequence[Record], accuracy: float) -> int | None:
    """The first round whose measured test accuracy is at least ``accuracy``; None when there is none."""
    return next((r["round"] for r in records if r.get("accuracy") is not None and r["accuracy"] >= accuracy), None)


def seconds_of(record: dict[str, Any]) -> float:
    """Seconds one round took: training, aggregation and evaluation."""
    return sum(record.get(f"seconds_{part}") or 0.0 for part in ("train", "aggregate", "evaluate"))


def short(value: float, digits: int) -> str:
    """``81.20``; and ``-1.8e+59``, not sixty digits, where a regression diverged."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.1e}"


def percent(value: float, digits: int = 1) -> str:
    """A fraction as ``81.2%``, as headings and captions have it."""
    return f"{short(100 * value, digits)}%"


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


def traffic(record: dict[str, Any]) -> float:
    """Bytes up and down in one round."""
    return float((record.get("bytes_up") or 0.0) + (record.get("bytes_down") or 0.0))


def total_seconds(run: StoredRun) -> float:
    """Seconds of all recorded rounds."""
    return sum(map(seconds_of, run.rounds))


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the two nearest of at least one value."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
