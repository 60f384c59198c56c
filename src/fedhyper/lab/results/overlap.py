"""Lines that lie on each other, drawn as stripes, so that each can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_STRIPE = 8  # pixels
_SOLID = [1, 0]
_NEAR = 0.004  # of the chart's width or height: less than the line is thick
_SHARE = 0.5  # of the rounds two series have in common

Point = tuple[float, float]


def dashes(rows: Sequence[dict[str, Any]], x: str, y: str, *, count: int, log: bool = False) -> list[list[int]] | None:
    """A dash pattern for each of ``count`` series that shows every colour where lines coincide; None if none do."""
    points = [_points(rows, index, x, y, log) for index in range(count)]
    flat = [point for one in points for point in one.values()]
    if not flat:
        return None
    reach = tuple(max(p[axis] for p in flat) - min(p[axis] for p in flat) for axis in (0, 1))
    bundles: list[list[int]] = []
    for index, mine in enumerate(points):
        home = next((b for b in bundles if _coincide(points[b[0]], mine, reach)), None)
        if home is None:
            bundles.append([index])
        else:
            home.append(index)
    if len(bundles) == count:
        return None
    patterns = [_SOLID] * count
    for bundle in bundles:
        # The first lies at the bottom, whole; every other leaves the stripes of the rest free.
        for place, index in enumerate(bundle[1:], 1):
            patterns[index] = [0, _STRIPE * place, _STRIPE, _STRIPE * (len(bundle) - 1 - place)]
    return patterns


def _points(rows: Sequence[dict[str, Any]], index: int, x: str, y: str, log: bool) -> dict[int, Point]:
    return {
        row["round"]: (row[x], math.log(row[y]) if log else row[y])
        for row in rows
        if row["s"] == index and row.get(x) is not None and row.get(y) is not None and (row[y] > 0 or not log)
    }


def _coincide(one: dict[int, Point], other: dict[int, Point], reach: tuple[float, ...]) -> bool:
    shared = one.keys() & other.keys()
    near = [t for t in shared if all(abs(one[t][i] - other[t][i]) <= _NEAR * reach[i] for i in (0, 1))]
    return len(near) > 0 and len(near) >= _SHARE * max(len(one), len(other))
