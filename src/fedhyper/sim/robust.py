"""Means that a minority of hostile clients cannot carry away, to choose with ``aggregate`` instead of the mean.

    trimmed   in every coordinate the fifth that is highest and the fifth that is lowest are left out
    median    in every coordinate the middle
    krum      the four fifths of the clients whose neighbours are nearest, averaged

All weigh clients alike: a weight is what a client says. They cost accuracy where clients differ (docs/security.md),
which is why none of them is the default. Yin et al. 2018 (trimmed, median), Blanchard et al. 2017 (Krum).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["mean", "trimmed", "median", "krum"]
SHARE = 0.2  # of a round's clients that may be hostile; Flower's FedTrimmedAvg has the same
_CHUNK = 1 << 20  # coordinates that are sorted at once


def robust(kind: Kind, updates: Sequence[Tensor], statistics: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """One update and one vector of statistics for all clients, in float32."""
    hostile = int(SHARE * len(updates))
    if kind == "krum":
        near = _krum(updates, hostile)
        rows = ([vectors[i] for i in near] for vectors in (updates, statistics))
        return tuple(_by_coordinate(some, 0) for some in rows)  # type: ignore[return-value]
    cut = (len(updates) - 1) // 2 if kind == "median" else hostile
    return _by_coordinate(updates, cut), _by_coordinate(statistics, cut)


def _by_coordinate(vectors: Sequence[Tensor], cut: int) -> Tensor:
    """The mean in every coordinate without the ``cut`` highest and the ``cut`` lowest."""
    out = torch.empty_like(vectors[0])
    for start in range(0, out.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        rows = torch.stack([vector[piece] for vector in vectors]).double()
        out[piece] = (rows.sort(0).values[cut : len(rows) - cut] if cut else rows).mean(0)
    return out


def _krum(updates: Sequence[Tensor], hostile: int) -> list[int]:
    """Who is kept: those with the least sum of squared distances to their M − hostile − 2 nearest, in their order."""
    count = len(updates)
    keep, near = count - hostile, max(1, count - hostile - 2)
    if count < 3:
        return list(range(count))
    rows = [[_sq_distance(a, b) for b in updates] for a in updates]
    score = [sum(sorted(row[:i] + row[i + 1 :])[:near]) for i, row in enumerate(rows)]
    return sorted(sorted(range(count), key=lambda i: (score[i], i))[:keep])


def _sq_distance(a: Tensor, b: Tensor) -> float:
    pieces = (slice(start, start + _CHUNK) for start in range(0, a.numel(), _CHUNK))
    return math.fsum(float((a[piece].double() - b[piece].double()).square().sum()) for piece in pieces)
