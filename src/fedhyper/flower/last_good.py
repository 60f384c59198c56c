"""The last good weights without a model of memory: most of the time they are the last step undone.

    good = now + step           within a rounding of what they were

A server waits with its state in memory while clients train, and writes it into every checkpoint. Where the last good
weights are those before the newest step, and the step is held anyway, ``good`` has the number 0 for its weights.
"""

from __future__ import annotations

from fedhyper.arrays import each
from fedhyper.averages import Model
from fedhyper.loop import LoopState


def fold(state: LoopState, old: LoopState) -> LoopState:
    """``state`` without the weights of ``good``, if these are the ones before its last step, which came after ``old``
    and was not multiplied with a rate."""
    held = state.good is old.now and isinstance(state.before, dict)
    if not held or any(state.before[k].dtype != w.dtype for k, w in old.now.weights.items()):
        return state
    return state._replace(good=Model(0.0, old.now.statistics))


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
