"""BatchNorm's statistics among arrays, by name, or where a list came without any ("0", "1", ...: Keras, get_weights).

A layer's arrays follow each other and are equally long: scale, shift, mean, variance, in torch with a counter after
them. A scale and a shift alone (LayerNorm) are two; so four in a row are BatchNorm's if a counter follows, or if the
last two are what statistics begin with, 0 and 1, and the first two as well, 1 and 0. A trained model's look like
anything: then four in a row of which the last has no negative number are only suspected.
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
    names, suspected, i = list(arrays), list[str](), 0
    while i + 4 <= len(names):
        scale, shift, mean, variance = (arrays[name] for name in names[i : i + 4])
        alike = scale.ndim == 1 and scale.shape == shift.shape == mean.shape == variance.shape
        if not (alike and all(array.dtype.kind == "f" for array in (scale, shift, mean, variance))):
            i += 1
            continue
        after = arrays[names[i + 4]] if i + 4 < len(names) else np.zeros(1)
        counted = after.ndim == 0 and after.dtype.kind == "i"
        fresh = (scale == 1).all() and not shift.any() and not mean.any() and (variance == 1).all()
        if counted or fresh:
            known |= {names[i + 2], names[i + 3]}
        elif (variance >= 0).all() and scale.size > 1:
            suspected += names[i + 2 : i + 4]
        else:
            i += 1
            continue
        i += 4
    return Statistics(frozenset(known), tuple(suspected))
