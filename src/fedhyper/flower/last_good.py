"""The last good weights without a model of memory: most of the time they are the last step undone.

    good = now + step           to a rounding of the longer of the two

A server waits with its state in memory while clients train, and writes it into every checkpoint. Where the last good
weights are those before the newest step, and the step is held anyway, ``good`` has the number 0 for its weights. Not
after a step so long that they would be lost in its rounding: that is the one which is undone.
"""

from __future__ import annotations

import numpy as np

from fedhyper.arrays import Array, each
from fedhyper.averages import Model
from fedhyper.loop import LoopState

_OFF = 1e-3  # of an array's largest weight: how far off its weights may come back


def fold(state: LoopState, old: LoopState) -> LoopState:
    """``state`` without the weights of ``good``, if these are the ones before its last step, which came after ``old``
    and was not multiplied with a rate."""
    held = state.good is old.now and isinstance(state.before, dict)
    if held and all(_comes_back(w, state.before[key]) for key, w in old.now.weights.items()):
        return state._replace(good=Model(0.0, old.now.statistics))
    return state


def _comes_back(weights: Array, step: Array) -> bool:
    same = bool(step.dtype == weights.dtype)
    return same and float(np.finfo(step.dtype).eps) * _largest(step) <= _OFF * _largest(weights)


def _largest(array: Array) -> float:
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))  # abs() makes a second array


def is_folded(state: LoopState) -> bool:
    """Whether the weights of ``good`` are not held."""
    return not isinstance(state.good.weights, dict)


def unfold(state: LoopState) -> LoopState:
    """``state`` with the weights of ``good``, each array of them made anew."""
    if not is_folded(state):
        return state
    good = each(lambda w, step: w + step, state.now.weights, state.before)
    return state._replace(good=Model(good, state.good.statistics))


def carried(state: LoopState, old: LoopState) -> LoopState:
    """``state``, which the loop made of a folded ``old``, with the weights of ``good`` wherever it needs them."""
    if not is_folded(old) or (state.now is old.now and state.before is old.before):
        return state
    if state.good is not old.good:  # there are newer ones
        return state
    good = unfold(old).good
    if state.now is old.good:  # back to them
        return state._replace(now=good, good=good, mean=good)
    return state._replace(good=good)
