"""What a run evaluates and returns: the newest weights, or under ``auto`` a mean of the last few rounds'."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from fedhyper.flower.layout import Arrays, pack

_CHUNK = 65_536  # stays in the cache


def moved(means: Arrays | None, before: Arrays, after: Arrays, newest: float) -> Arrays | None:
    """mean + newest · (after − mean), in float32 or wider, in the memory of ``means``; at 1 None: nothing to average.

    Without ``means`` the weights of the round before are the mean. Integers are not averaged.
    """
    if newest == 1:
        return None
    if means is None:
        floats = {name: array for name, array in before.items() if array.dtype.kind == "f"}
        means = {name: np.array(a, np.result_type(a, np.float32), order="C") for name, a in floats.items()}
    for name, mean in means.items():
        left, right = mean.reshape(-1), after[name].reshape(-1)
        for start in range(0, left.size, _CHUNK):
            piece = left[start : start + _CHUNK]
            away = right[start : start + _CHUNK] - piece
            away *= newest
            piece += away
    return means


def averaged(means: Arrays | None, record: ArrayRecord) -> ArrayRecord:
    """``record`` with the means in place of its floats, in its own types."""
    if means is None:
        return record
    return ArrayRecord(
        {
            name: pack(means[name].astype(array.dtype, copy=False)) if name in means else array
            for name, array in record.items()
        }
    )
