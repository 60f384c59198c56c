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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import NamedTuple

from fedhyper.settings import check_settings, setting

LOWEST, HIGHEST = -24, 8  # rungs: 1e-12 to 1e4 at r = √10; not constants of the rule, only where climbing ends
TRIED = 1e-4  # the rate of the round that measures how far a client moves; any small one will do
MOVE = (
    1e-3  # climbing begins where a local round moves the weights by this share of their length: only cost depends on it
)


class Tried(NamedTuple):
    """What came of a round in which every client tried one rate: whose updates to use, and (rung, gain) votes."""

    used: frozenset[int]
    votes: tuple[tuple[int, float], ...]


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
    def candidates(voted: int | None, loses: Mapping[int, float]) -> list[int]:
        """Rungs that are worth a few rounds: the one that votes led to, the one below it, and the panel's own.

        ``loses``: by rung, how much a panel of clients loses by the mean update; below 0 is a gain. A panel that gains
        nowhere has no choice of its own: where a cohort has few classes it looks so at every useful rate.
        """
        own = min(loses, key=lambda rung: (loses[rung], rung), default=None)
        pair = set() if voted is None else {voted, max(voted - 1, LOWEST)}
        return sorted(pair | (set() if own is None or not loses[own] < 0 else {own}))

    def spread(self, clients: int, round_: int, rate: float) -> list[int]:
        """A rung for each client, where clients try one each and report a training loss; none for fewer than three.

        The first round spans 1e-5 to 10; each one after it halves the distance, around ``rate``, to which the votes so
        far led. (Interleaving the grid over the rounds instead ends two rungs too low with three clients a round.)
        """
        if clients < 3:
            return []
        low, high = self.rung(1e-5), self.rung(10.0)
        apart = max(1, math.ceil((high - low) / (clients - 1)))
        rungs = list(range(low, high + 1, apart))
        if round_:
            apart = max(1, math.ceil(apart / 2**round_))
            least = self.rung(rate * self.ratio**0.5) - min(clients, len(rungs)) // 2 * apart
            rungs = [least + i * apart for i in range(min(clients, len(rungs)))]
        return [min(max(rungs[i % len(rungs)], LOWEST), HIGHEST) for i in range(clients)]

    def rounds(self, clients: int) -> int:
        """About how many rounds it takes that many clients to find the rate; 0: they cannot."""
        apart = math.ceil((self.rung(10.0) - self.rung(1e-5)) / max(clients - 1, 1))
        return 0 if clients < 3 else 1 if clients >= self.voices else 1 + math.ceil(math.log2(max(apart, 1)))

    def weigh(
        self,
        rungs: Sequence[int],
        means: Sequence[float],
        firsts: Sequence[float] | None = None,
    ) -> Tried:
        """What came of a round in which client i tried ``rungs[i]`` once and reports its mean training loss.

        ``firsts``: their losses before they trained. Without them the median over the lower half of the rungs stands
        for all: they hardly moved. A rung's gain is the median of its clients', in units of the second best rung's (one
        liar cannot set it; of fewer than five rungs, the best's), clipped to ±1, and it counts with that of the rung
        below: a peak that nothing leads up to is an odd client's. Averaging with both neighbours stays below a cliff by
        as much as rungs are apart. Everyone votes for the best; only one does if the rungs were far apart, so that
        closer ones outvote it later. The updates from the best down to two rungs below are used. Only differences of
        losses are compared.
        """
        order, gained, unmoved = _gains(rungs, means, firsts)
        raw = [median_low([gain for r, gain in zip(rungs, gained, strict=True) if r == rung]) for rung in order]
        # three or four rungs are too few for the second best to be a measure: it may have gained next to nothing
        units = (max(raw),) if len(order) < 5 else (*sorted(raw)[-2:-1], max(raw))
        unit = next((gain for gain in units if gain > 0), 0.0)
        if unit == 0:  # no rung gained anything: nobody votes, and the lowest, which did least, is used
            return Tried(frozenset(i for i, rung in enumerate(rungs) if rung == order[0]), ())
        own = [min(max(gain / unit, -1.0), 1.0) for gain in raw]
        led = [own[i] + (own[i - 1] if i else 0.0) for i in range(len(own))]
        best = order[max(range(len(order)), key=lambda i: (led[i], raw[i]))]
        # On a plateau a round gains less than clients differ, and a low rate stays there: the highest that is no worse.
        # (How far single clients differ: medians of three rungs may happen to agree.)
        noise = 2 * median(abs(gain - median(unmoved)) for gain in unmoved) if unmoved else 0.0
        if sorted(raw)[-2:][0] <= noise and order[-1] - order[0] >= 6:
            best = max((rung for rung, gain in zip(order, raw, strict=True) if gain >= -noise), default=best)
        used = frozenset(i for i, rung in enumerate(rungs) if best - 2 <= rung <= best and math.isfinite(gained[i]))
        gain = max(median_low([gained[i] for i in used]), 0.0)
        close = order[-1] - order[0] <= 2 * (len(order) - 1)
        return Tried(used, ((best, gain),) * (len(rungs) if close else 1))

    def untold(
        self, rungs: Sequence[int], means: Sequence[float], firsts: Sequence[float] | None, rate: float
    ) -> frozenset[int]:
        """Whose updates to use in a short run at ``rate``, its own, where such a round tells no rate from another: of
        the clients at it, or up to two rungs below. Nobody's: the round tells, or that rate did harm in it.

        Told is what gains twice of what clients that hardly moved differ by; the two oddest of them do not count. Rungs
        far apart are only a first look, which later rounds check: they are left to ``weigh``.
        """
        order, gained, unmoved = _gains(rungs, means, firsts)
        if not unmoved or order[-1] - order[0] > 2 * (len(order) - 1):
            return frozenset()
        within = sorted(unmoved)[1:-1] if len(unmoved) > 4 else sorted(unmoved)
        width = 2 * (within[-1] - within[0])
        raw = {rung: median_low([gain for r, gain in zip(rungs, gained, strict=True) if r == rung]) for rung in order}
        own = [rung for rung in order if self.rung(rate) - 2 <= rung <= self.rung(rate)]
        if max(raw.values()) > width or any(raw[rung] < -width for rung in own):
            return frozenset()
        return frozenset(i for i, rung in enumerate(rungs) if rung in own and math.isfinite(gained[i]))


def _gains(
    rungs: Sequence[int], means: Sequence[float], firsts: Sequence[float] | None
) -> tuple[list[int], list[float], list[float]]:
    """The rungs that were tried, what each client gained, and what those at the lower half of the rungs did."""
    order = sorted(set(rungs))
    lower = order[: max(1, len(order) // 2)]
    hardly = [mean for rung, mean in zip(rungs, means, strict=True) if rung in lower and math.isfinite(mean)]
    reference = median(hardly) if hardly else math.nan
    before = [reference] * len(rungs) if firsts is None else firsts
    gained = [_finite(a - b) for a, b in zip(before, means, strict=True)]
    return order, gained, [gain for r, gain in zip(rungs, gained, strict=True) if r in lower and math.isfinite(gain)]


def _finite(gain: float) -> float:
    return gain if math.isfinite(gain) else -math.inf
