"""What clients report of their training: which metric is the loss, what it says, and the rate that was used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedhyper.flower.wire import LOSS, MEAN_LOSS, USED_LR, VOTE, VOTES

# A client's loss at the weights that were sent, over all its data, is the newest word on those weights. A stock client
# reports its mean training loss; that sees a bad rate a round earlier and bad weights nearly as well.
TRAIN_LOSS = (
    MEAN_LOSS,
    "train_loss",
    "train-loss",
    "loss",
    "training_loss",
    "train_logloss",
    "train-logloss",
    "logloss",
)
KEYS = (LOSS, MEAN_LOSS, "loss", *(name for name in TRAIN_LOSS if name not in (MEAN_LOSS, "loss")))

Rows = Sequence[Mapping[str, Any]]


def first_number(row: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    """The first of these metrics that is a number."""
    return next((float(row[key]) for key in keys if isinstance(row.get(key), (int, float))), None)


def used_lr(row: Mapping[str, Any]) -> float | None:
    """The local rate that a client says it used; None: it says none, or none that can be."""
    said = first_number(row, (USED_LR,))
    return said if said is not None and 0 < said < math.inf else None


class Losses:
    """The clients' losses, none in a round in which nobody reports one. ``given``: the metric, if the app names it.

    Which metric is the loss is found out in the first round in which more than half of the clients report one of
    ``KEYS``, the first of these that they do; from then on it is that one. Where most of them climbed that is the mean
    over the steps before any other: at the best of several rates it shows from the first round on what a round gains,
    and a loss before training has not fallen yet when the first step does damage. A round without says nothing of it:
    clients that never report a loss leave a schedule that reads it without a brake (see docs/flower.md).
    """

    def __init__(self, given: str | None = None) -> None:
        self.train_keys = TRAIN_LOSS if given is None else (given,)
        self.key = given  # None: not found out yet

    def train_loss(self, row: Mapping[str, Any]) -> float | None:
        """A client's mean training loss, or the mean of theirs; None: it is not among these metrics."""
        return first_number(row, self.train_keys)

    def values(self, rows: Rows) -> tuple[float, ...]:
        """Those of the clients that report it; one row, where only their average is to be seen."""
        if self.key is None:
            counts = {key: sum(isinstance(row.get(key), (int, float)) for row in rows) for key in KEYS}
            climbed = 2 * sum(VOTE in row or VOTES in row for row in rows) > len(rows)
            order = (MEAN_LOSS, *KEYS) if climbed else KEYS
            self.key = next((key for key in order if 2 * counts[key] > len(rows)), None)
        values = [row.get(self.key or "") for row in rows]
        return tuple(float(value) for value in values if isinstance(value, (int, float)))
