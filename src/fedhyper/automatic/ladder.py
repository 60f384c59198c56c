"""The start: clients try rates out in the first round, and what most of them find best is where the run begins.

    rungs     r^j, j a whole number: one grid for every client, so that votes can be counted
    score     mean loss over a client's local steps, each taken *before* the step, and its first batch's once more after
    vote      the rung with the lowest score, climbing from below until two in a row are no better
    rate      r^v, v the mean of the votes between the lower quartile and the median, none more than 1 below the median
    race      in the simulator, a few rounds at that rate and at others, judged by a panel of clients (sim/start.py)

In the first pass over its data every batch is new to a client, so the score is a held-out one that costs nothing, and a
round that blew up on its way cannot hide it. No score is ever compared between clients: skewed data cannot mislead the
count, and one client has one vote. Tried and worse: a client's loss after its round (a rung too high with many steps),
others' data (below 0 at every useful rate where data are skewed), the plain median (a liar moves it when they tie).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median_low

from fedhyper.settings import check_settings, setting

LOWEST, HIGHEST = -24, 8  # rungs: 1e-12 to 1e4 at r = √10; not constants of the rule, only where climbing ends
RUNGS = HIGHEST - LOWEST + 1
ROUNDED = 1e-3  # of a mean of votes: what float16 may have rounded, and less than the share of any client of 500
TRIED = 1e-4  # the rate of the round that measures how far a client moves; any small one will do
MOVE = (
    1e-3  # climbing begins where a local round moves the weights by this share of their length: only cost depends on it
)


@dataclass(frozen=True)
class Ladder:
    """Rungs r^j, and how votes for them become a rate.

    ratio   r, the factor between two rungs
    voices  clients that decide
    ahead   rounds that rates compete for, where the host can look ahead
    """

    ratio: float = setting(
        10**0.5, "factor between two rates that are tried; raising it makes the start cheaper and coarser", above=1
    )
    voices: int = setting(
        10, "clients that decide; with fewer a round the start takes more rounds, raising it waits for more", low=1
    )
    ahead: int = setting(12, "rounds that rates compete for; raising it sees further and costs more", low=1)

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
        """Which rung a client tries next, None: it is done. Up until two in a row are no better, or while none makes a
        difference; down while the lowest is best. From below, because rates far too high all look alike."""
        if not scores:
            return start
        best, top, bottom = self.best(scores), max(scores), min(scores)
        same = len(set(scores.values())) == 1 and math.isfinite(scores[top])
        if (same or top - best < 2) and top < HIGHEST:
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

    def settle(self, votes: Sequence[int]) -> float:
        """The rate that votes lead to; NaN without one. A minority of liars cannot move it by more than a rung."""
        ordered = sorted(votes)
        if not ordered:
            return math.nan
        n, middle = len(ordered), median_low(ordered)
        lower = max(1, n // 4) if n > 2 else 0
        kept = [max(vote, middle - 1) for vote in ordered[lower : (n + 1) // 2]]
        return self.rate(sum(kept) / len(kept))

    def voted(self, votes: Sequence[int]) -> int | None:
        """The rung nearest to what votes lead to, the lower of two; None without votes."""
        rung = math.log(self.settle(votes)) / math.log(self.ratio) if votes else math.nan
        return math.floor(rung + 0.5 - 1e-9) if votes else None

    @staticmethod
    def binned(vote: int | None) -> list[float]:
        """A vote for a sum that hides who gave it: a number a rung from LOWEST to HIGHEST, 1 at its own, else 0."""
        return [float(vote == rung) for rung in range(LOWEST, HIGHEST + 1)]

    @staticmethod
    def counted(shares: Sequence[float], clients: int) -> tuple[int, ...]:
        """The votes of so many clients of which only the mean of ``binned`` is known, as many as voted, in order.

        Each counts as much as its weight in that mean. (): nobody voted, or it is no such mean, for one of them sent
        something else; then none is believed.
        """
        whole = sum(shares)
        if len(shares) != RUNGS or not (min(shares) >= -ROUNDED and ROUNDED < whole <= 1 + ROUNDED):
            return ()
        voters, below = max(1, round(clients * whole)), list(accumulate(shares))
        return tuple(LOWEST + bisect(below, whole * (i + 0.5) / voters) for i in range(voters))

    @staticmethod
    def candidates(voted: int | None, loses: Mapping[int, float]) -> list[int]:
        """Rungs that are worth a few rounds: the one that votes led to, the one below it, and the panel's own.

        ``loses``: by rung, how much a panel of clients loses by the mean update; below 0 is a gain. A panel that gains
        nowhere has no choice of its own: where a cohort has few classes it looks so at every useful rate.
        """
        own = min(loses, key=lambda rung: (loses[rung], rung), default=None)
        pair = set() if voted is None else {voted, max(voted - 1, LOWEST)}
        return sorted(pair | (set() if own is None or not loses[own] < 0 else {own}))
