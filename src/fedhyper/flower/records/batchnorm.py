"""BatchNorm's statistics among arrays, by name, or where a list came without any ("0", "1", ...: Keras, get_weights).

A layer's arrays follow each other and are equally long: scale, shift, mean, variance, in torch with a counter after
them. A scale and a shift alone (LayerNorm) are two; so four in a row are BatchNorm's if a counter follows, or if the
last two are what statistics begin with, 0 and 1, and the first two as well, 1 and 0. A trained model's look like
anything: then four in a row of which the last is all positive are only suspected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


class Statistics(NamedTuple):
    """Names of arrays that are never trained, and of those that may be."""

    known: frozenset[str]
    suspected: tuple[str, ...] = ()


def statistics(arrays: Mapping[str, NDArray[Any]]) -> Statistics:
    """What is BatchNorm's among these."""
    known = {name for name in arrays if name.endswith(_BUFFERS)}
    if not all(name.isdecimal() for name in arrays):
        return Statistics(frozenset(known))
    names, suspected = list(arrays), list[str]()
    fours = [names[i : i + 4] for i in range(len(names) - 3) if _alike([arrays[name] for name in names[i : i + 4]])]
    for four in fours:
        scale, shift, mean, variance = (arrays[name] for name in four)
        after = arrays.get(str(int(four[-1]) + 1), np.zeros(1))
        counted = after.ndim == 0 and after.dtype.kind == "i"
        if counted or ((scale == 1).all() and not shift.any() and not mean.any() and (variance == 1).all()):
            known |= set(four[2:])
    for four in fours:  # a layer's bias before a known scale makes four alike, too
        near = {str(int(four[2]) + place) for place in range(-4, 5)}
        if not known & near and arrays[four[0]].size > 1 and (arrays[four[3]] > 0).all():
            suspected += [name for name in four[2:] if name not in suspected]
    return Statistics(frozenset(known), tuple(suspected))


def _alike(arrays: list[NDArray[Any]]) -> bool:
    return all(array.ndim == 1 and array.dtype.kind == "f" and array.shape == arrays[0].shape for array in arrays)
