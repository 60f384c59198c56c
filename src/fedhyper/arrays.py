"""What layer 1 asks of an array: NumPy, torch, plain numbers, or lists of these; no import of any of them.

The last axis is the vector; leading axes are a batch (one row a client). A list is one vector in pieces.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard

Array = Any  # duck-typed on purpose: whatever has shape, arithmetic, slicing and sum

# Short enough that neither torch nor BLAS splits a sum among threads (torch starts at 32,768 numbers), so a
# result has the same bits for any thread count; short enough, too, that the float64 copies stay in the cache.
_CHUNK = 16_384


def namespace(array: Array) -> Any:
    """The module whose functions act on ``array``: numpy, torch, ..."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a plain number (True is not), which stands for an array full of it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def float64(array: Array) -> Array:
    """``array`` in double precision: sums of squares of float16 overflow, of 1e-30 in float32 vanish."""
    return array.double() if hasattr(array, "double") else array.astype("float64")


def elementwise(name: str, value: Array, *others: Array) -> Array:
    """``math.name`` for a plain number, ``namespace.name`` for an array."""
    return getattr(math if is_number(value) else namespace(value), name)(value, *others)


def isfinite(value: Array) -> Array:
    """``|value| < inf``, element by element; a bool for a plain number."""
    return elementwise("isfinite", value)


def where(condition: Array, yes: Array, no: Array) -> Array:
    """``yes`` where ``condition`` holds, else ``no``; no arithmetic on the one not taken (NaN · 0 is NaN)."""
    if isinstance(condition, bool):
        return yes if condition else no
    return namespace(condition).where(condition, yes, no)


def _total(terms: list[float]) -> float:
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):  # inf - inf, or a sum beyond float64: not a number to act on
        return math.nan


def _fit(a: Array, b: Array) -> Array:
    """``b`` in the shape of ``a``: a number is repeated, another shape refused: broadcasting hides mistakes."""
    if is_number(b) and not is_number(a):
        return [b] * len(a) if isinstance(a, (list, tuple)) else a * 0 + b  # keeps a's NaN, too
    left, right = [(len(x),) if isinstance(x, (list, tuple)) else tuple(getattr(x, "shape", ())) for x in (a, b)]
    if left != right:
        raise ValueError(f"the two vectors have shapes {left} and {right}; they must match")
    return b


def _flat(piece: Array) -> Array:
    return piece.reshape(-1) if len(getattr(piece, "shape", ())) > 1 else piece


def plus(a: Array, times: float, b: Array) -> Array:
    """``a + times · b``, on lists piece by piece; a number ``b`` stands for a vector full of it."""
    if times == 0:  # not even inf · 0
        return a
    if isinstance(a, (list, tuple)):
        return [plus(x, times, y) for x, y in zip(a, _fit(a, b), strict=True)]
    return a + times * b


def inner(a: Array, b: Array) -> Array:
    """``<a, b> = Σ a_i b_i`` over the last axis, in float64, with the same bits for any number of threads."""
    b = _fit(a, b)
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return _total([float(inner(_flat(x), _flat(_fit(x, y)))) for x, y in zip(a, b, strict=True)])
    if not getattr(a, "shape", ()):
        return float(a) * float(b)
    total: Array = 0.0
    for start in range(0, max(a.shape[-1], 1), _CHUNK):
        piece = (..., slice(start, start + _CHUNK))
        total = total + (float64(a[piece]) * float64(b[piece])).sum(-1)
    return float(total) if isinstance(total, float) else total


def cosine(a: Array, b: Array) -> Array:
    """``<a, b> / (|a| |b|)`` in [-1, 1] up to rounding; 0 when either is zero: without a direction nothing moves."""
    product = inner(a, b)
    scale = inner(a, a) ** 0.5 * inner(b, b) ** 0.5
    return product / where(scale > 0, scale, 1.0)
