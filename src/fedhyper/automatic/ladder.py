"""The start: clients try rates out in the first round, and what most of them find best is where the run begins.

    rungs     r^j, j a whole number: one grid for every client, so that votes can be counted
    score     mean loss over a client's local steps, each taken *before* the step, and its first batch's once more after
    vote      the rung with the lowest score, climbing from below until two in a row are no better
    rate      r^v, v the mean of the votes between the lower quartile and the median, none more than 1 below the median

In the first pass over its data every batch is new to a client, so the score is a held-out one that costs nothing, and a
round that blew up on its way cannot hide it. No score is ever compared between clients: skewed data cannot mislead the
count, and one client has one vote. Tried and worse: a client's loss after its round (a rung too high with many steps),
others' data (below 0 at every useful rate where data are skewed), the plain median (a liar moves it when they tie).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple, TypeVar

from fedhyper.settings import check_settings, setting

T = TypeVar("T")
LOWEST, HIGHEST = -24, 8  # rungs: 1e-12 to 1e4 at r = √10; not constants of the rule, only where climbing ends
TRIED = 1e-4  # the rate of the round that measures how far a client moves; any small one will do
MOVE = (
    1e-3  # climbing begins where a local round moves the weights by this share of their length: only cost depends on it
)


Tries = tuple[tuple[int, float], ...]  # (rung, what was gained there, as a share of the loss)


class Tried(NamedTuple):
    """What came of a round in which every client tried one rate: whose updates to use, the votes as (rung, gain) in
    units of the loss, and all tries so far."""

    used: frozenset[int]
    votes: tuple[tuple[int, float], ...]
    tries: Tries


@dataclass(frozen=True)
class Ladder:
    """Rungs r^j, and how votes for them become a rate.

    ratio   r, the factor between two rungs
    voices  clients that decide
    """

    ratio: float = setting(
        10**0.5, "factor between two rates that are tried; raising it makes the start cheaper and coarser", above=1
    )
    voices: int = setting(
        10, "clients that decide; with fewer a round the start takes more rounds, raising it waits for more", low=1
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def rate(self, rung: float) -> float:
        """The rate of a rung, whole or between two."""
        return float(self.ratio**rung)

    def rung(self, rate: float) -> int:
        """The nearest rung at or below ``rate``, inside the grid."""
        below = math.floor(math.log(rate) / math.log(self.ratio) + 1e-9) if 0 < rate < math.inf else LOWEST
        return min(max(below, LOWEST), HIGHEST)

    def start(self, moved: float, length: float) -> int:
        """The first rung: ``moved`` is |Δ| of a local round at the rate TRIED, ``length`` is |w|.

        Their ratio has no unit: a pretrained model, or one with Adam, begins as low as it needs to.
        """
        known = 0 < moved < math.inf and 0 < length < math.inf
        return self.rung(MOVE * length / moved * TRIED if known else TRIED)

    def next(self, scores: Mapping[int, float], start: int) -> int | None:
        """Which rung a client tries next, None: it is done. Up until two in a row are no better, down while the lowest
        is best. From below, because rates far too high all look alike."""
        if not scores:
            return start
        best, top, bottom = self.best(scores), max(scores), min(scores)
        if top - best < 2 and top < HIGHEST:
            return top + 1
        return bottom - 1 if best == bottom > LOWEST else None

    @staticmethod
    def best(scores: Mapping[int, float]) -> int:
        """The rung with the lowest score, of equals the lowest; what is not a number is worst."""
        return min(sorted(scores), key=lambda rung: scores[rung] if math.isfinite(scores[rung]) else math.inf)

    def vote(self, scores: Mapping[int, float]) -> int | None:
        """A client's vote; None when the rate made no difference to it."""
        finite = [score for score in scores.values() if math.isfinite(score)]
        return self.best(scores) if len(finite) > 1 and max(finite) > min(finite) else None

    @staticmethod
    def gained(scores: Mapping[int, float]) -> float:
        """What its best rung gained over its lowest, at least 0, in units of the loss."""
        finite = [score for score in scores.values() if math.isfinite(score)]
        lowest = scores[min(scores)]
        return lowest - min(finite) if finite and math.isfinite(lowest) else 0.0

    def climb(self, trial: Callable[[float], tuple[float, T]], start: int) -> tuple[int | None, float, T]:
        """One client's climb: ``trial(rate)`` gives a score and its round. Vote, gain, and the best round come back."""
        scores: dict[int, float] = {}
        rounds: dict[int, T] = {}
        while (rung := self.next(scores, start)) is not None:
            scores[rung], rounds[rung] = trial(self.rate(rung))
        return self.vote(scores), self.gained(scores), rounds[self.best(scores)]

    def settle(self, votes: Sequence[int]) -> float:
        """The rate that votes lead to; NaN without one. A minority of liars cannot move it by more than a rung."""
        ordered = sorted(votes)
        if not ordered:
            return math.nan
        n, middle = len(ordered), median_low(ordered)
        lower = max(1, n // 4) if n > 2 else 0
        kept = [max(vote, middle - 1) for vote in ordered[lower : (n + 1) // 2]]
        return self.rate(sum(kept) / len(kept))

    @property
    def window(self) -> range:
        """The rungs that are spread over clients that try one each: 1e-5 to 10."""
        return range(self.rung(1e-5), self.rung(10.0) + 1)

    def spread(self, clients: int, round_: int = 0) -> list[int]:
        """A rung for each client, where clients try one each and report a training loss, low to high.

        With fewer clients than rungs they are interleaved over the rounds, so that in a few rounds all were tried.
        """
        rungs = list(self.window)
        rounds = max(1, math.ceil(len(rungs) / clients))
        mine = rungs[round_ % rounds :: rounds]
        return [mine[i % len(mine)] for i in range(clients)]

    def weigh(
        self,
        rungs: Sequence[int],
        means: Sequence[float],
        firsts: Sequence[float] | None = None,
        earlier: Tries = (),
    ) -> Tried:
        """What came of a round in which client i tried ``rungs[i]`` once and reports its mean training loss.

        ``firsts``: their losses before they trained. Without them the lowest rung's loss stands for all: it hardly
        moved. A rung's gain is the median of its tries, ``earlier`` rounds' included, clipped to ±1 and averaged with
        its neighbours' unless it is bad itself. Everyone votes for the best; updates from two rungs below it are used.
        """
        reference = median_low([mean for rung, mean in zip(rungs, means, strict=True) if rung == min(rungs)])
        before = [reference] * len(rungs) if firsts is None else firsts
        gained = [_finite(a - b) for a, b in zip(before, means, strict=True)]
        shares = [min(max(gain / abs(a) if a else gain, -1.0), 1.0) for a, gain in zip(before, gained, strict=True)]
        tries = (*earlier, *zip(rungs, shares, strict=True))
        order = sorted({rung for rung, _ in tries})
        own = [median_low([share for one, share in tries if one == rung]) for rung in order]
        padded = [own[0], *own, own[-1]]
        smooth = [one if one < -0.5 else sum(padded[i : i + 3]) / 3 for i, one in enumerate(own)]
        if max(own) <= 0:  # no rung gained anything: nobody votes, and the lowest, which did least, is used
            return Tried(frozenset(i for i, rung in enumerate(rungs) if rung == order[0]), (), tries)
        best = order[smooth.index(max(smooth))]
        used = frozenset(i for i, rung in enumerate(rungs) if best - 2 <= rung <= best)
        gain = max(median_low([gained[i] for i in used]), 0.0) if used else 0.0
        return Tried(used, ((best, gain),) * len(rungs), tries)


def _finite(gain: float) -> float:
    return gain if math.isfinite(gain) else -math.inf
