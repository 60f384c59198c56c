"""One look at a long vector instead of three.

A plan that says ``products_only`` asks nothing of Δ_t and of what it is compared with, b (Δ_t-1, or the server's last
step), but their inner products, and those do not change when the two are written in another basis. So both are read
once, in float64, and the plan is shown two numbers each: with p the coordinates of b, and p' the same turned by 90°,

    Δ_t = p · <Δ_t, b> / |b|²  +  p' · (the rest of its length) / |b|

At 11 million parameters that is a third of the time, and what the plan remembers is a handful of numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedhyper.arrays import is_number
from fedhyper.automatic.ladder import Ladder
from fedhyper.averages import Averaging
from fedhyper.flower.records.layout import Arrays
from fedhyper.optimizers import ServerOptimizer
from fedhyper.plan import Plan, PlanState, Seen

_CHUNK = 8192  # stays in the cache, and below the length from which OpenBLAS uses threads: same bits for any number


class Products(NamedTuple):
    """<a, b>, <a, a> and <b, b>."""

    across: float
    first: float
    second: float


def products(a: Arrays, b: Arrays | float, second: float | None = None) -> Products:
    """In float64, in one pass and the same bits for any number of threads; ``b`` the number 0: there is none.

    ``second`` is <b, b> where it is known already.
    """
    x, y = np.empty(_CHUNK), np.empty(_CHUNK)
    sums: tuple[list[float], list[float], list[float]] = ([], [], [])
    for name, array in a.items():
        left = array.reshape(-1)
        right = None if is_number(b) else b[name].reshape(-1)  # type: ignore[index]
        for start in range(0, left.size, _CHUNK):
            piece = left[start : start + _CHUNK]
            u = x[: piece.size]
            u[...] = piece
            sums[1].append(float(u.dot(u)))
            if right is not None:
                v = y[: piece.size]
                v[...] = right[start : start + _CHUNK]
                sums[0].append(float(u.dot(v)))
                if second is None:
                    sums[2].append(float(v.dot(v)))
    return Products(_total(sums[0]), _total(sums[1]), _total(sums[2]) if second is None else second)


def _total(terms: list[float]) -> float:
    # exact, hence the same bits in whatever order a checkpoint gives the arrays back
    return math.fsum(terms) if all(map(math.isfinite, terms)) else math.nan


class Coordinates(NamedTuple):
    """What ``InCoordinates`` remembers: the plan's own memory, Δ as it was shown last, and its cosine with b."""

    memory: Any
    delta: list[float] | float = 0.0  # 0: there was none
    cosine: float = math.nan  # NaN: there was nothing to compare with

    @property
    def tried(self) -> tuple[tuple[int, float], ...]:
        """The plan's own."""
        return getattr(self.memory, "tried", ())

    @property
    def first(self) -> float:
        """The plan's own."""
        return getattr(self.memory, "first", math.nan)

    @property
    def length(self) -> float:
        """|Δ|."""
        return math.hypot(*self.delta) if isinstance(self.delta, list) else math.nan


@dataclass(frozen=True)
class InCoordinates:
    """``plan``, which reads inner products only, shown two numbers in place of every vector; itself a plan."""

    plan: Plan

    @property
    def requires(self) -> frozenset[str]:
        """The plan's own."""
        return self.plan.requires

    @property
    def compares(self) -> Literal["delta", "step"]:
        """The plan's own."""
        return self.plan.compares

    @property
    def products_only(self) -> bool:
        """False: this one measures the vectors themselves."""
        return False

    @property
    def ladder(self) -> Ladder | None:
        """The plan's own."""
        return self.plan.ladder

    @property
    def graft(self) -> float | None:
        """The plan's own."""
        return self.plan.graft

    @property
    def optimizer(self) -> ServerOptimizer:
        """The plan's own."""
        return self.plan.optimizer

    @property
    def average(self) -> Averaging:
        """The plan's own."""
        return self.plan.average

    def init(self) -> PlanState:
        """The plan's own."""
        state = self.plan.init()
        return state._replace(memory=Coordinates(state.memory))

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """The plan's own, on two numbers each."""
        old: Coordinates = state.memory
        if "delta" not in self.requires or isinstance(seen.delta, float):  # then nothing has to be measured
            return self._next(state, seen, old)
        # a rule compares with the Δ it was shown last, in the coordinates it knows; a step has none as yet
        known = old.delta if self.compares == "delta" and isinstance(old.delta, list) else None
        found = products(seen.delta, seen.before, None if known is None else old.length**2)
        before: list[float] | float = 0.0
        if found.second > 0:
            x, y = before = known or [math.sqrt(found.second), 0.0]
            along = found.across / found.second
            rest = math.sqrt(max(found.first / found.second - along * along, 0.0))
            shown = [along * x - rest * y, along * y + rest * x]
            cosine = found.across / math.sqrt(found.first * found.second) if found.first > 0 else 0.0
        else:  # nothing to compare with: the first axis is Δ's own
            shown, cosine = [math.sqrt(found.first), 0.0], math.nan
        # beyond float64's range nothing can be compared, and nothing of it may stay
        memory = Coordinates(old.memory, shown if all(map(math.isfinite, shown)) else old.delta, cosine)
        return self._next(state, seen._replace(delta=shown, before=before), memory)

    def nonsense(self, state: PlanState) -> PlanState:
        """The plan's own."""
        old: Coordinates = state.memory
        new = self.plan.nonsense(state._replace(memory=old.memory))
        return new._replace(memory=old._replace(memory=new.memory))

    def _next(self, state: PlanState, seen: Seen, memory: Coordinates) -> PlanState:
        new = self.plan.update(state._replace(memory=memory.memory), seen)
        return new._replace(memory=memory._replace(memory=new.memory))


def lengths(state: PlanState, compares: Literal["delta", "step"]) -> dict[str, float | None]:
    """``cosine`` and ``update_norm`` of the newest round's record, where a plan in coordinates has measured them."""
    found = state.memory
    if not isinstance(found, Coordinates):
        return {"cosine": None, "update_norm": None}
    return {"cosine": found.cosine if compares == "delta" else None, "update_norm": found.length}
