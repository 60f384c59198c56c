"""The start where clients train once a round: each tries one rate, all of them at the same weights, which wait.

    gain    of a client: its loss before it trained minus the mean over its local steps
    best    the rung with the highest gain, by the lower median of those who tried it
    next    rates between the best and its neighbours, until none is more than two rungs away
    found   from there down, the lowest that still gains four fifths of that: the best is where many local steps, or a
            client with one class, lower their own loss most, and the mean of such updates helps nobody; and two below
            where harm may begin

The weights wait because a gain counts against others: after a step that was too long everybody gains, at any rate. It
costs rounds, one with ten clients, two or three with five, up to nine with one, and never more than a fifth of a run
whose length is known. Only differences of gains are compared, so any loss will do.

Tried and worse (docs/results/start.md): a step in every round, at the best rate so far; rates ever closer around what
votes led to, which with three clients ended two rungs too low; the rung with the highest gain, and one below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median, median_low
from typing import NamedTuple

from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder

Tried = tuple[tuple[int, float], ...]  # (rung, gain) of each client

NEAR = 2  # rungs: neighbours this far from the best tell enough
OPEN = 4  # rungs that are looked at beyond the lowest or the highest that was tried, if that is the best
ENOUGH = 0.8  # of the highest gain
ODD = 3.0  # times: what is above noise; and a rung, how a gain may grow if one client alone speaks of it
LEAST = 1e-6  # of a loss: what float32 cannot tell is no gain
PART = 5  # of a run: one round in so many may be spent, but at least one
LOST = 1e30  # minus that is the gain of a loss that is not a number


class Best(NamedTuple):
    """What tries have found so far."""

    rung: int  # to begin with
    top: int  # that gained most
    gain: float  # in units of the loss; 0: nothing stood out


@dataclass(frozen=True)
class Tries:
    """What clients of the rounds so far have tried, all at the same weights."""

    ladder: Ladder
    tried: Tried = ()
    short: bool = False  # whether the run is so short that its first round of this is its last

    def spread(self, clients: int) -> list[int]:
        """A rung for each of the clients of the next round. First from 1e-5 to 10; what is left over goes to the
        highest, where it matters most. Then between the best and its neighbours."""
        above, below = self._gaps()
        if not (above or below):
            return self._whole(clients)
        high = _evenly(above, -(-clients // 2) if below else clients)
        low = _evenly(below, clients - len(high))
        return [*high, *low, *[self._top] * (clients - len(high) - len(low))]

    def _whole(self, clients: int) -> list[int]:
        low, high = self.ladder.rung(1e-5), self.ladder.rung(10.0)
        if clients < 3:
            return [low + (i + 1) * (high - low) // (clients + 1) for i in range(clients)]
        apart = max(1, math.ceil((high - low) / (clients - 1)))
        rungs = list(range(low, high + 1, apart))[::-1]
        return [rungs[i % len(rungs)] for i in range(clients)]

    @property
    def done(self) -> bool:
        """Whether another round would tell little: the best has neighbours, or rates far apart make no difference."""
        by_rung = self._by_rung()
        nothing = self.best() is None and len(by_rung) > 2 and max(by_rung.values()) >= 0
        return nothing or not any(self._gaps())

    @property
    def _top(self) -> int:
        """Around which rung to look: the best, or what comes next to one; if every rate does harm, the lowest."""
        best = self.best()
        if best is not None:
            return best.top
        # of rates that do as much harm the lowest, of rates that do nothing the highest
        return max(self._by_rung().items(), key=lambda pair: (pair[1], pair[0] if pair[1] >= 0 else -pair[0]))[0]

    def _by_rung(self) -> dict[int, float]:
        rungs = sorted({rung for rung, _ in self.tried})
        return {rung: median_low([gain for r, gain in self.tried if r == rung]) for rung in rungs}

    def _gaps(self) -> tuple[list[int], list[int]]:
        """The rungs above that one, and below, that are still to be looked at."""
        if not self.tried:
            return [], []
        top, rungs = self._top, sorted({rung for rung, _ in self.tried})
        above = next((rung for rung in rungs if rung > top), None)
        below = next((rung for rung in reversed(rungs) if rung < top), None)
        up = range(top + 1, min(top + OPEN, HIGHEST) + 1 if above is None else above)
        down = range(max(top - OPEN, LOWEST) if below is None else below + 1, top)
        return (
            [] if above is not None and above - top <= NEAR else list(up),
            [] if below is not None and top - below <= NEAR else list(down),
        )

    def best(self) -> Best | None:
        """None: no rate gained anything, as far as can be seen."""
        if not self.tried:
            return None
        order, raw = list(self._by_rung()), list(self._by_rung().values())
        gains = self._believed(order, raw)
        most = max(gains)
        top = order[gains.index(most)]
        noise = self._noise(order, top, told=most > 0)
        if most <= noise:
            # On a plateau a round gains less than clients differ, and a low rate stays there: one below the highest
            # that did no harm to speak of. Where nobody differs, nothing can be told
            flat = [rung for rung, gain in zip(order, raw, strict=True) if gain >= -ODD * noise]
            return Best(flat[-1] - 1, flat[-1], 0.0) if noise > 0 and max(raw) >= 0 else None
        found = takewhile(lambda pair: pair[1] >= ENOUGH * most, _down_from(top, order, gains))
        # the server's momentum makes a step five times as long: two below where harm may begin, which is next to the
        # last rung below it, if a rate above loses three times what the best gains
        above = zip(order, order[1:], raw[1:], strict=False)
        harm = [last + 1 - NEAR for last, rung, gain in above if rung > top and gain < -ODD * most]
        return Best(min([rung for rung, _ in found][-1:] + harm), top, most)

    def _noise(self, order: Sequence[int], top: int, *, told: bool) -> float:
        """What a gain has to exceed: three times the middle one of clients that hardly moved, at the lowest third of
        the rungs and far below the best. They gain and lose alike; if all of them gain, that is no noise. Nor is what
        one or two of them lose, if it is more than three times the middle one of all."""
        third = order[0] + (order[-1] - order[0]) // 3
        below = [gain for rung, gain in self.tried if rung <= (min(third, top - OPEN) if told else third)]
        if told and top == order[0]:  # then those above it: if they all lose, it is the rate
            above = [gain for rung, gain in self.tried if top < rung <= third]
            below = above if above and max(above) > 0 else []
        if not below or min(below) > 0:
            return 0.0
        sizes, usual = [abs(gain) for gain in below], median_low(abs(gain) for _, gain in self.tried)
        if len(sizes) < 3:
            sizes = [size for size in sizes if 0 < size <= ODD * usual]
        return ODD * median_low(sizes) if sizes else 0.0

    def _believed(self, order: Sequence[int], gains: list[float]) -> list[float]:
        """Of what one client alone speaks of: a peak that nothing leads up to may be an odd client, or a liar, and
        counts as a gain that grows threefold a rung from a neighbour's. Above a rate that does harm nothing counts: a
        client with one class gains at any rate. But harm comes after gain: where nothing below it gained as much, that
        is the odd one."""
        if len(order) < 5:
            return gains
        believed, below = [], 0.0
        for i, (rung, gain) in enumerate(zip(order, gains, strict=True)):
            beside = [(gains[j], abs(order[j] - rung)) for j in (i - 1, i + 1) if 0 <= j < len(gains)]
            if sum(one == rung for one, _ in self.tried) > 1:
                believed.append(gain)
            elif 2 * below <= -gain < 0 and max(believed) >= ENOUGH * gain:
                believed.append(0.0)
                continue
            else:
                believed.append(min(gain, max(0.0, *(near * ODD**apart for near, apart in beside))))
            below = gain
        return believed

    @property
    def found(self) -> int | None:
        """The rung to begin with. A start that was cut short, or of a short run, has less time to be prudent, and less
        to fear: in the first rounds the server's momentum has not grown yet."""
        best = self.best()
        prudent = self.done and not self.short
        return None if best is None else best.rung if prudent else min(best.rung + 1, best.top)

    def used(self, rungs: Sequence[int], gains: Sequence[float]) -> frozenset[int]:
        """Whose updates of this round, the last, make the first step: at the rung that was found, or up to two below;
        nobody's where nothing was found."""
        found = LOWEST - 1 if self.found is None else self.found
        near = [found - 2 <= rung <= found for rung in rungs]
        return frozenset(i for i, gain in enumerate(gains) if near[i] and gain > -LOST)


def gains_of(
    rungs: Sequence[int], means: Sequence[float], firsts: Sequence[float | None], first: float = math.nan
) -> list[float]:
    """What each client gained in a round.

    means   over its local steps
    firsts  before it trained; of those that do not say the others' median stands for it
    first   the loss at these weights by earlier rounds; NaN: there were none

    Where most do not say what they began with, ``first`` stands for all, or the means at the lowest third of the rungs.
    """
    known = [loss for loss in firsts if loss is not None and math.isfinite(loss)]
    if 2 * len(known) <= len(firsts):
        lowest = min(rungs) + (max(rungs) - min(rungs)) // 3
        hardly = [mean for rung, mean in zip(rungs, means, strict=True) if rung <= lowest and math.isfinite(mean)]
        firsts = [first if math.isfinite(first) else median(hardly) if hardly else math.nan] * len(means)
    middle = median_low(known) if known else math.nan
    pairs = [(middle if loss is None else loss, mean) for loss, mean in zip(firsts, means, strict=True)]
    return [_finite(0.0 if abs(a - b) <= LEAST * abs(a) else a - b) for a, b in pairs]


def _down_from(top: int, order: Sequence[int], gains: Sequence[float]) -> Iterator[tuple[int, float]]:
    pairs = zip(reversed(order), reversed(gains), strict=True)
    return (pair for pair in pairs if pair[0] <= top)


def _finite(gain: float) -> float:
    return max(gain, -LOST) if math.isfinite(gain) else -LOST


def _evenly(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, as far from each other as from the ends."""
    n = min(most, len(values))
    return [values[(2 * i + 1) * len(values) // (2 * n)] for i in range(n)]


def untold(ladder: Ladder, rungs: Sequence[int], gains: Sequence[float], rate: float) -> frozenset[int]:
    """Whose updates to use in a short run at ``rate``, its own, where its first round tells no rate from another: of
    the clients at it, or up to two rungs below. Nobody's: the round tells, or that rate did harm in it.

    Told is what gains three times what clients that hardly moved, at the lower half of the rungs, differ by; of five or
    more the two oddest do not count. Rungs far apart are only a first look, which later rounds check.
    """
    order = sorted(set(rungs))
    lower = order[: max(1, len(order) // 2)]
    unmoved = sorted(gain for rung, gain in zip(rungs, gains, strict=True) if rung in lower and gain > -LOST)
    if not unmoved or order[-1] - order[0] > 2 * (len(order) - 1):
        return frozenset()
    within = unmoved[1:-1] if len(unmoved) > 4 else unmoved
    width = ODD * (within[-1] - within[0])
    raw = {rung: median_low([gain for r, gain in zip(rungs, gains, strict=True) if r == rung]) for rung in order}
    own = [rung for rung in order if ladder.rung(rate) - 2 <= rung <= ladder.rung(rate)]
    if max(raw.values()) > width or any(raw[rung] < -width for rung in own):
        return frozenset()
    return frozenset(i for i, rung in enumerate(rungs) if rung in own and gains[i] > -LOST)
