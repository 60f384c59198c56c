"""The loss that the guard watches, from whatever clients report."""

from __future__ import annotations

from typing import Any

from flwr.app import MetricRecord

from fedhyper.flower.replies import PREFIX, Reply

# The loss of the first batch, at the weights that were sent, is the newest word on those weights. A stock client
# reports its mean training loss; that sees a bad rate a round earlier and bad weights just as well.
KEYS = (f"{PREFIX}loss", "loss", "train_loss", "train-loss")


class Losses:
    """Finds out in the first round which metric is the loss, and gives its mean over the clients from then on.

    When there is none the guard is shown 0 for ever and stays silent; non-finite updates are refused all the same. When
    a later round lacks it, the last value is shown again.
    """

    def __init__(self) -> None:
        self._key: str | None = None  # "": there is none
        self._last = 0.0

    def mean(self, replies: list[Reply], metrics: MetricRecord | None, *, aggregate_only: bool) -> float:
        """Σ p_m loss_m. With ``aggregate_only`` the inner strategy has averaged it."""
        rows: list[dict[str, Any]] = [dict(metrics or {})] if aggregate_only else [reply.metrics for reply in replies]
        weights = [1.0] if aggregate_only else [reply.weight for reply in replies]
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
