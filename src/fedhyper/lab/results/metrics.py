"""Numbers of runs: one definition each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhyper.lab.results.stored import StoredRun


def number(value: object) -> float | None:
    """``value`` as a finite float; None for anything else, booleans and numerals in strings included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def seconds_of(record: dict[str, Any]) -> float:
    """Seconds one round took: training, aggregation and evaluation."""
    return sum(record.get(f"seconds_{part}") or 0.0 for part in ("train", "aggregate", "evaluate"))


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
