"""One look at a long vector instead of three.

The rules of layer 1 ask nothing of Δ_t and the direction before it (Δ_t-1, or auto's step M_t-1) but their inner
products, and those do not change when the two are written in another basis. So both are read once, in float64, and the
rules are shown two numbers each:

    M_t-1 = (|M_t-1|, 0),    Δ_t = (<Δ_t, M_t-1> / |M_t-1|, the rest of its length)

At 11 million parameters that is a third of the time, and the schedule's state is a handful of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedhyper.automatic.auto import Auto
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.flower.layout import Arrays, Vector
from fedhyper.plan import Pair, Plan, PlanState
from fedhyper.schedulers import FedHyperG, FedHyperSL, LRState

_CHUNK = 8192  # stays in the cache, and below the length from which OpenBLAS uses threads: same bits for any number
_STRETCH = 65_536
_RULES = (Constant, Decay, FedExP, FedHyperG, FedHyperSL)


def knows(plan: Plan) -> bool:
    """Whether ``plan`` is known to read inner products only; another one is shown the vectors themselves."""
    if type(plan) is Pair:
        return type(plan.global_rule) in _RULES and type(plan.local_rule) in _RULES
    return type(plan) is Auto


def products(a: Vector, b: Vector | None) -> tuple[float, float]:
    """<a, b> and <a, a> in float64, in one pass and the same bits for any number of threads; <a, b> = 0 without b."""
    x, y = np.empty(_CHUNK), np.empty(_CHUNK)
    across, square = 0.0, 0.0
    for start in range(0, a.size, _CHUNK):
        piece = a[start : start + _CHUNK]
        left = x[: piece.size]
        left[...] = piece
        square += float(left.dot(left))
        if b is not None:
            right = y[: piece.size]
            right[...] = b[start : start + _CHUNK]
            across += float(left.dot(right))
    return across, square


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


def add(delta: Vector, times: float, before: Vector) -> None:
    """delta ← delta + times · before: ``arrays.plus`` in place, in one pass, without another vector of that length."""
    work = np.empty(_CHUNK, delta.dtype)
    for start in range(0, delta.size, _CHUNK):
        piece = delta[start : start + _CHUNK]
        piece += np.multiply(before[start : start + _CHUNK], times, out=work[: piece.size], casting="same_kind")


def update(
    plan: Plan, state: PlanState, delta: Vector, before: Vector | None, *, loss: float, sq_norm: float
) -> PlanState:
    """``plan.update(state, delta, ...)``, where ``before`` is the step of the update before (None: there is none).

    ``sq_norm`` NaN: not known, and |Δ|², which it cannot be below, stands for it.
    """
    across, square = products(delta, before)
    previous = max((abs(part.before[0]) for part in state.parts if _in_coordinates(part)), default=0.0)
    along = across / previous if previous else 0.0
    shown = [along, math.sqrt(max(square - along * along, 0.0))]
    new = plan.update(state, shown, loss=loss, sq_norm=square if math.isnan(sq_norm) else sq_norm)
    # the step that is now the newest becomes the first axis
    parts = [
        part._replace(before=[math.hypot(*part.before), 0.0]) if _in_coordinates(part) else part for part in new.parts
    ]
    return new._replace(parts=tuple(parts))


def _in_coordinates(part: object) -> bool:
    return isinstance(part, LRState) and isinstance(part.before, list)
