"""The two scalars that a schedule may read beside the aggregate: the clients' loss and |Δ_m|²."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedhyper.flower.records.layout import Arrays
from fedhyper.flower.wire import LOSS, MEAN_LOSS

_CHUNK = 8192  # stays in the cache, and below the length from which OpenBLAS uses threads
_STRETCH = 65_536

# The loss of the first batch, at the weights that were sent, is the newest word on those weights. A stock client
# reports its mean training loss; that sees a bad rate a round earlier and bad weights just as well.
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
KEYS = (LOSS, "loss", *(name for name in TRAIN_LOSS if name != "loss"))

Rows = Sequence[Mapping[str, Any]]


def first_number(row: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    """The first of these metrics that is a number."""
    return next((float(row[key]) for key in keys if isinstance(row.get(key), (int, float))), None)


def reported(key: str, rows: Rows, weights: Sequence[float]) -> float | None:
    """Σ p_m x_m of a metric, or None unless everybody reports it as a number of at least 0."""
    values = [row.get(key) for row in rows]
    if not all(isinstance(value, (int, float)) and 0 <= value < math.inf for value in values):
        return None
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)  # type: ignore[operator]


class Losses:
    """The clients' losses, none in a round in which nobody reports one. ``given``: the metric, if the app names it.

    Which metric is the loss is found out in the first round in which more than half of the clients report one of
    ``KEYS``, the first of these that they do; from then on it is that one. A round without says nothing about damage:
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
            self.key = next((key for key, count in counts.items() if 2 * count > len(rows)), None)
        values = [row.get(self.key or "") for row in rows]
        return tuple(float(value) for value in values if isinstance(value, (int, float)))


def sq_distance(a: Arrays, b: Arrays, names: Iterable[str]) -> float:
    """|a − b|² over the arrays of these names."""
    wide, total = np.empty(_CHUNK), 0.0
    for name in names:
        left, right = a[name].reshape(-1), b[name].reshape(-1)
        narrow = np.empty(_CHUNK, np.result_type(left, right))
        for start in range(0, left.size, _CHUNK):
            piece = left[start : start + _CHUNK]
            out = np.subtract(piece, right[start : start + _CHUNK], out=narrow[: piece.size])
            square = wide[: piece.size]
            square[...] = out
            total += float(square.dot(square))
    return total


def sq_distances(a: Arrays, others: Sequence[Arrays], names: Sequence[str]) -> list[float]:
    """``sq_distance`` to each of ``others``, reading ``a`` once: a stretch of it stays in the cache.

    Squares and sums of 256 of them in the arrays' own type, where that neither overflows nor vanishes; the rest in
    float64. No BLAS, hence no threads.
    """
    totals = [0.0] * len(others)
    with np.errstate(over="ignore"):
        for name in names:
            left, rights = a[name].reshape(-1), [b[name].reshape(-1) for b in others]
            work = np.empty(_STRETCH, np.result_type(left, np.float32))
            for start in range(0, left.size, _STRETCH):
                piece = left[start : start + _STRETCH]
                out = work[: piece.size]
                rows = out[: piece.size // 256 * 256].reshape(-1, 256)
                rest = out[rows.size :]
                for i, right in enumerate(rights):
                    np.subtract(piece, right[start : start + _STRETCH], out=out)
                    totals[i] += float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
                    totals[i] += float(np.einsum("i,i->", rest, rest))
    size = sum(a[name].size for name in names)
    return [
        total if size * 1e-31 < total < math.inf else sq_distance(a, b, names)
        for total, b in zip(totals, others, strict=True)
    ]
