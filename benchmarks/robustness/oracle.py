"""The rival: the better of FedAvg and FedAvgM at its best rates, chosen on the test set; here, which runs that takes.

For each of the two methods, in this order, by the mean score over the seeds of the search:

    local     ``least`` rates 10^(k/2) around a middle one, then outwards until the best has a worse one on both sides;
              global rate 1
    global    0.3 and 3 at the best local rate, and at its neighbour that keeps the product
    decay     of the best so far, the local rate falling to a third and to a tenth by the end, and to a tenth from one
              rate higher

The whole grid of 2 methods × 6 local × 3 global rates × 3 decays finds the same where accuracy has one peak over each
rate; how much it finds beyond that is measured on the digits (``--grid``). Then the best two are run on all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

LOWEST, HIGHEST = -10, 4  # local rates 1e-5 to 100
METHODS = ("fedavg", "fedavgm")
OTHERS = (0.3, 3.0)  # global rates besides 1
DECAYS = (3, 10)  # by how much the local rate falls over the run


class Rival(NamedTuple):
    """A tuned method: which one, from which rates, and by what the local rate falls over the run (1: not at all)."""

    method: str
    local_lr: float
    global_lr: float = 1.0
    decay: int = 1

    def __str__(self) -> str:
        return f"{self.method} {self.local_lr:g} {self.global_lr:g} {self.decay}"

    @property
    def words(self) -> str:
        """As a table says it."""
        name = {"fedavg": "FedAvg", "fedavgm": "FedAvgM"}[self.method]
        other = f" × {self.global_lr:g}" if self.global_lr != 1 else ""
        return f"{name} {self.local_lr:g}{other}" + (f", falling to 1/{self.decay}" if self.decay > 1 else "")


Scores = Callable[[Rival], float | None]  # percent, the mean over the seeds of the search; None: not run yet


def rate(rung: int) -> float:
    """10^(rung/2) as people write it: 0.03, 0.1, 0.3."""
    return float(f"{10 ** (rung // 2) * (3 if rung % 2 else 1):.1g}")


def rung_of(local_lr: float) -> int:
    """The rung whose rate this is."""
    return next(rung for rung in range(LOWEST - 2, HIGHEST + 3) if rate(rung) == local_lr)


def search(scores: Scores, middle: float, least: int) -> list[Rival]:
    """The rivals to run next; empty when the search is over."""
    return [rival for method in METHODS for rival in _next(method, scores, rung_of(middle), least)]


def tried(scores: Scores, middle: float, least: int) -> list[Rival]:
    """Every rival that a finished search has run, the best first; of equals the simplest."""
    stages = [stage for method in METHODS for stage in _stages(method, scores, rung_of(middle), least)]
    found = dict.fromkeys(rival for stage in stages for rival in stage)
    return sorted(found, key=lambda rival: -(scores(rival) or 0.0))


def _next(method: str, scores: Scores, middle: int, least: int) -> list[Rival]:
    for stage in _stages(method, scores, middle, least):
        missing = [rival for rival in stage if scores(rival) is None]
        if missing:
            return missing
    return []


def _stages(method: str, scores: Scores, middle: int, least: int) -> Iterator[list[Rival]]:
    """What to run, stage by stage; a stage is only asked for when the one before it is known."""

    def best(rivals: list[Rival]) -> Rival:
        return max(rivals, key=lambda rival: scores(rival) or 0.0)

    low = middle - least // 2
    high = low + least - 1
    while True:
        local = [Rival(method, rate(rung)) for rung in range(low, high + 1)]
        yield local
        top = rung_of(best(local).local_lr)
        if low < top < high or (top == high == HIGHEST) or (top == low == LOWEST):
            break
        low, high = (low, high + 1) if top == high else (low - 1, high)

    at = rung_of(best(local).local_lr)
    others = [
        Rival(method, rate(rung), other)
        for other, toward in zip(OTHERS, (1, -1), strict=True)
        for rung in (at, at + toward)
    ]
    yield others

    chosen = best([*local, *others])
    higher = rate(rung_of(chosen.local_lr) + 1)
    yield [*(chosen._replace(decay=decay) for decay in DECAYS), chosen._replace(local_lr=higher, decay=DECAYS[-1])]


def grid(middle: float) -> list[Rival]:
    """The whole grid, to judge the search by: six local rates around the middle one."""
    at = rung_of(middle)
    return [
        Rival(method, rate(rung), other, decay)
        for method in METHODS
        for rung in range(at - 3, at + 3)
        for other in (1.0, *OTHERS)
        for decay in (1, *DECAYS)
    ]
