"""Sums over all the replies of a round, block by block: what is read stays in the cache while it is used.

Flower decodes a copy of every reply and multiplies it into another; on views, in blocks, the same mean has the same
bits in a third of the time, which is more than measuring how far each client moved costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedhyper.flower.records.layout import Arrays

_CHUNK = 8192  # stays in the cache, and below the length from which OpenBLAS uses threads
_STRETCH = 262_144  # of 65,536 to 262,144 numbers the longest is the fastest, by a fifth
_SHORT = 32_768  # of ten replies as many stay in the cache
_SLICE = 512  # a product of this length, of MOST replies, is too small for OpenBLAS to use threads
MOST = 16  # replies each of which is multiplied with each: of twenty that takes longer than with their sum alone


def mean(
    replies: Sequence[Arrays], weights: Sequence[float], names: Iterable[str], before: Arrays | None = None
) -> Arrays:
    """Σ p_m x_m with p_m = weight / Σ weights, in the replies' order and their type: the bits of Flower's FedAvg.

    With ``before``, before − Σ p_m x_m instead, in float32 or wider: a model less to allocate, and to read.
    """
    return {name: out for name, _, out in _means(replies, weights, names, before, _STRETCH)}


def moved(
    replies: Sequence[Arrays], weights: Sequence[float], names: Iterable[str], before: Arrays
) -> tuple[Arrays, list[float]]:
    """``mean(..., before)``, to the same bits, and <Δ_m, Σ w_n Δ_n> of each reply, Δ_m = before − x_m, in one look.

    As <before, S> − <x_m, S>, while what the mean has read is in the cache: no Δ_m is written down. It has the digits
    that the replies' own rounding leaves. For more replies than ``products`` is for.
    """
    delta: Arrays = {}
    products = [0.0] * (len(replies) + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, piece, out in _means(replies, weights, names, before, _SHORT):
            delta[name] = out
            rows = [arrays[name].reshape(-1)[piece] for arrays in (before, *replies)]
            step = out.reshape(-1)[piece]
            for start in range(0, step.size, _CHUNK):
                part = step[start : start + _CHUNK]
                for i, row in enumerate(rows):
                    products[i] += float(row[start : start + _CHUNK].dot(part))
    whole = sum(weights)
    return delta, [whole * (products[0] - product) for product in products[1:]]


def products(before: Arrays, replies: Sequence[Arrays], names: Sequence[str]) -> list[list[float]]:
    """<Δ_m, Δ_n> of every two replies, Δ_m = before − x_m, in one look: lengths, and with any weights all directions.

    In the arrays' own type, sums of 512 products of it in float64; all in float64 where a length would overflow or
    vanish. Of one reply the row and the column are its own: what is not finite in it stays in them.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = _products(before, replies, names, np.float32)
        least = 1e-31 * sum(before[name].size for name in names)
        odd = [i for i, square in enumerate(found.diagonal()) if not least < square < math.inf]
        if any(0 < sq_distance(before, replies[i], names) < math.inf for i in odd):
            found = _products(before, replies, names, np.float64)
    rows: list[list[float]] = found.tolist()
    return rows


def _products(before: Arrays, replies: Sequence[Arrays], names: Sequence[str], least: type[np.floating[Any]]) -> Any:
    n, total = len(replies), np.zeros((len(replies), len(replies)))
    for name in names:
        left, rights = before[name].reshape(-1), [arrays[name].reshape(-1) for arrays in replies]
        # a row more than there are replies: of a matrix and itself NumPy asks BLAS in a way that takes twice as long
        work = np.zeros((n + 1, min(_SHORT, -(-left.size // _SLICE) * _SLICE)), np.result_type(left, least))
        for start in range(0, left.size, _SHORT):
            piece = left[start : start + _SHORT]
            slices = -(-piece.size // _SLICE)
            for row, right in zip(work, rights, strict=False):
                np.subtract(piece, right[start : start + _SHORT], out=row[: piece.size])
            work[:n, piece.size : slices * _SLICE] = 0
            cut = work[:, : slices * _SLICE].reshape(n + 1, slices, _SLICE).transpose(1, 0, 2)
            total += np.matmul(cut[:, :n], cut.transpose(0, 2, 1)).sum(0, dtype=np.float64)[:, :n]
    return total


def _means(
    replies: Sequence[Arrays], weights: Sequence[float], names: Iterable[str], before: Arrays | None, stretch: int
) -> Iterator[tuple[str, slice, Any]]:
    """``mean``, as it grows: a name, the stretch that was just added, and the array it is in."""
    whole = sum(weights)
    shares = [weight / whole for weight in weights]
    for name in names:
        first, *others = [arrays[name].reshape(-1) for arrays in replies]
        out = np.empty(first.size, first.dtype if before is None else np.result_type(np.float32, first))
        shaped = out.reshape(replies[0][name].shape)
        term, total = (np.empty(min(stretch, first.size), first.dtype) for _ in "ab")
        for start in range(0, max(first.size, 1), stretch):
            here = slice(start, start + stretch)
            result = out[here]
            piece = result if out.dtype == first.dtype else total[: result.size]
            np.multiply(first[here], shares[0], out=piece)
            for other, share in zip(others, shares[1:], strict=True):
                piece += np.multiply(other[here], share, out=term[: piece.size])
            if before is not None:
                np.subtract(before[name].reshape(-1)[here], piece, out=result)
            yield name, here, shaped


def sq_distance(a: Arrays, b: Arrays, names: Iterable[str]) -> float:
    """|a − b|² over the arrays of these names."""
    wide, total = np.empty(_CHUNK), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
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
    with np.errstate(over="ignore", invalid="ignore"):
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
