"""What layer 1 asks of an array: NumPy, torch, plain numbers, or lists and dicts of these; no import of any of them.

The last axis is the vector; leading axes are a batch (one row a client). A list or a dict is one vector in pieces.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
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


def in_pieces(array: Array) -> bool:
    """Whether it is a vector in pieces: a list, tuple or dict of arrays."""
    return isinstance(array, (list, tuple, dict))


def each(function: Callable[..., Array], array: Array, *others: Array) -> Array:
    """``function`` of the arrays, piece by piece where they are in pieces; a number stands for an array full of it."""
    if not in_pieces(array):
        found = function(array, *others)  # of an array without axes NumPy makes a number, which is saved as a number
        return found if is_number(array) or getattr(array, "shape", None) != () else namespace(array).asarray(found)
    fitted = [_fit(array, other) for other in others]
    if isinstance(array, dict):
        return {key: each(function, x, *(other[key] for other in fitted)) for key, x in array.items()}
    return [each(function, x, *rest) for x, *rest in zip(array, *fitted, strict=True)]


def _fit(a: Array, b: Array) -> Array:
    """``b`` in the shape of ``a``: a number is repeated, another shape refused: broadcasting hides mistakes."""
    if is_number(b) and not is_number(a):
        if isinstance(a, dict):
            return dict.fromkeys(a, b)
        return [b] * len(a) if isinstance(a, (list, tuple)) else a * 0 + b  # keeps a's NaN, too
    left, right = _form(a), _form(b)
    if left != right:
        raise ValueError(f"the two vectors have shapes {left} and {right}; they must match")
    return b


def _form(a: Array) -> tuple[Any, ...]:
    if isinstance(a, dict):
        return tuple(sorted(a, key=str))
    return (len(a),) if isinstance(a, (list, tuple)) else tuple(getattr(a, "shape", ()))


def _flat(piece: Array) -> Array:
    return piece.reshape(-1) if len(getattr(piece, "shape", ())) > 1 else piece


def _sum(fresh: Array, x: Array) -> Array:
    """``x + fresh`` in the memory of ``fresh``, which nobody else holds: a model more to allocate takes as long."""
    if getattr(fresh, "dtype", None) != getattr(x, "dtype", None):
        return x + fresh  # the wider of the two
    fresh += x
    return fresh


def _scaled(fresh: Array, times: float) -> Array:
    """``times · fresh`` in the memory of ``fresh``, as in ``_sum``; of whole numbers a new one."""
    if "float" not in str(getattr(fresh, "dtype", "")):
        return fresh * times
    fresh *= times
    return fresh


def plus(a: Array, times: float, b: Array) -> Array:
    """``a + times · b``; where either is the number 0, ``a`` itself: not even inf · 0 is added."""
    return a if times == 0 or (is_number(b) and b == 0) else each(lambda x, y: _sum(times * y, x), a, b)


def blend(old: Array, new: Array, share: float) -> Array:
    """``old + share · (new − old)``; at 1 ``new`` itself. Not torch.lerp, whose bits depend on how threads cut it."""
    return new if share == 1 else each(lambda x, y: _sum(_scaled(y - x, share), x), old, new)


def inner(a: Array, b: Array) -> Array:
    """``<a, b> = Σ a_i b_i`` over the last axis, in float64, with the same bits for any number of threads."""
    b = _fit(a, b)
    if in_pieces(a):
        pairs = [(a[key], b[key]) for key in a] if isinstance(a, dict) else zip(a, b, strict=True)
        return _total([float(inner(_flat(x), _flat(_fit(x, y)))) for x, y in pairs])
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
