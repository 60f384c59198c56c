"""What may be believed: the clamp every rate goes through, the checks every reply goes through, and the rollback."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from fedhyper.arrays import Array, elementwise, is_number, isfinite, where


def clamp(value: Array, low: float, high: float, keep: Array) -> Array:
    """``min(max(value, low), high)``, or ``keep`` where value is NaN or infinite.

    Bare ``min`` and ``max`` are not enough: ``min(1.1, nan)`` is 1.1, and ``nan < low`` is false.
    """
    if is_number(value):
        return min(max(float(value), low), high) if math.isfinite(value) else keep
    return where(isfinite(value), elementwise("clip", value, low, high), keep)


def check_positive(name: str, value: object) -> None:
    """Refuse a setting that is not a finite number above 0."""
    if not (is_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def all_finite(array: Array) -> bool:
    """Whether every number of ``array`` is finite. A sum of squares would also refuse 1e200."""
    return bool(isfinite(array).all())


def reject_reason(delta: Array, like: Array, examples: object) -> str | None:
    """Why one client's update must not enter the mean, or None when it may.

    ``like`` has the shape that is expected; ``examples`` is the weight the client claims.
    """
    if not is_number(examples):
        return f"weight is {type(examples).__name__}, not a number"
    if not 0 < examples <= sys.float_info.max:  # an int may lie beyond every float
        return f"weight {examples} is not finite and positive"
    if tuple(delta.shape) != tuple(like.shape):
        return f"shape {tuple(delta.shape)}, expected {tuple(like.shape)}"
    if not all_finite(delta):
        return "non-finite"
    return None


def norm_caps(norms: Sequence[float], factor: float) -> list[float]:
    """What to multiply each update with so that none is longer than ``factor`` × the median norm: min(1, c·med/|Δ_m|).

    One huge update can then shift the mean by at most its share; the plain mean breaks down at 1/(1 + factor).
    """
    limit = factor * median(norms) if norms else 0.0
    return [1.0 if norm <= limit else limit / norm for norm in norms]


class LossState(NamedTuple):
    """First and lowest loss so far, and whether the newest one asks for a rollback."""

    first: float = math.inf
    best: float = math.inf
    rollback: bool = False


@dataclass(frozen=True, kw_only=True)
class LossGuard:
    """Return to the last good weights when the loss that clients meet says the model has been damaged.

    ``loss`` is the mean over clients of the loss of their first batch, at the weights they received: one scalar a
    client, and the newest word on those weights. Rollback when it is not finite, exceeds ``above_first`` × the
    first round's, or exceeds ``above_best`` × the lowest so far.
    """

    above_first: float = 1.2
    above_best: float = 2.0

    def __post_init__(self) -> None:
        for name in ("above_first", "above_best"):
            if not getattr(self, name) > 1:
                raise ValueError(f"{name} is a factor and must be above 1, got {getattr(self, name)}; try 2")

    def init(self) -> LossState:
        """Nothing seen: the first finite loss is always accepted."""
        return LossState()

    def update(self, state: LossState, loss: float) -> LossState:
        """Judge ``loss``. A rejected loss leaves first and best as they were."""
        limit = min(self.above_first * state.first, self.above_best * state.best)
        if not (math.isfinite(loss) and loss <= limit):
            return state._replace(rollback=True)
        first = loss if math.isinf(state.first) else state.first
        return LossState(first, min(loss, state.best), rollback=False)
