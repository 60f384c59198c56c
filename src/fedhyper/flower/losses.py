"""The two scalars that a schedule may read beside the aggregate, from whatever clients report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedhyper.flower.replies import PREFIX

# The loss of the first batch, at the weights that were sent, is the newest word on those weights. A stock client
# reports its mean training loss; that sees a bad rate a round earlier and bad weights just as well.
KEYS = (f"{PREFIX}loss", "loss", "train_loss", "train-loss")
SQ_NORM = f"{PREFIX}sq-norm"  # |Δ_m|², reported by train_reply


def reported(key: str, rows: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> float:
    """Σ p_m x_m of a metric, or NaN unless everybody reports it as a number of at least 0."""
    total = 0.0
    for row, weight in zip(rows, weights, strict=True):
        value = row.get(key)
        if not (isinstance(value, (int, float)) and value >= 0):
            return math.nan
        total += value * weight
    return total / sum(weights)


class Losses:
    """Finds out in the first round which metric is the loss, and gives its mean over the clients from then on.

    When there is none the guard is shown 0 for ever and stays silent; non-finite updates are refused all the same. When
    a later round lacks it, the last value is shown again.
    """

    def __init__(self) -> None:
        self._key: str | None = None  # "": there is none
        self._last = 0.0

    def mean(self, rows: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> float:
        """Σ p_m loss_m over the clients' metrics; one row, where only their average is to be seen."""
        if self._key is None:
            present = [key for key in KEYS if all(isinstance(row.get(key), (int, float)) for row in rows)]
            self._key = present[0] if present else ""
        pairs = [(row[self._key], weight) for row, weight in zip(rows, weights, strict=True) if self._key in row]
        values = [(value, weight) for value, weight in pairs if isinstance(value, (int, float))]
        if values:
            self._last = sum(value * weight for value, weight in values) / sum(weight for _, weight in values)
        return self._last

    def state(self) -> list[Any]:
        """For a checkpoint."""
        return [self._key, self._last]

    def restore(self, saved: list[Any]) -> None:
        """From a checkpoint."""
        self._key, self._last = saved
