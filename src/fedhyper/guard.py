"""What may be believed: the clamp every rate goes through, and the checks every reply goes through."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import median

from fedhyper.arrays import Array, elementwise, in_pieces, is_number, isfinite, where


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
    """Whether every number of ``array``, of each of its pieces, is finite. A sum of squares would also refuse 1e200."""
    if in_pieces(array):
        return all(all_finite(piece) for piece in (array.values() if isinstance(array, dict) else array))
    finite = isfinite(array)
    return finite if isinstance(finite, bool) else bool(finite.all())


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
