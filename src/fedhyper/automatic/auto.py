"""Learning-rate-free: no rate to choose, for any client optimizer, from the aggregate, losses, and one vote a client.

    start    clients of the first round try rates out and vote; a panel checks that    ladder.py, sim/start.py
    follow   within a factor of it, the hypergradient moves the rate, less and less   follow.py
    damage   if most clients meet weights that were damaged: back, and a rung lower   damage.py
    harm     if most rounds meet a loss above the first one: the same, and for good   damage.py
    asked    where many clients can be: whether going back is better for what is kept  sim/start.py
    step     M_t = Δ_t + min(μ, k/(k + 2)) · M_t-1, w ← w − α M_t                     optimizers.py
             α is 1; in a run so short that the start sees its end, α and how far the
             local rate falls are what is best there                               sim/start.py
    keep     a mean over about the last quarter of the run                            averages.py

Where clients train once a round, each tries one rate while the weights wait (tries.py). Nobody can be asked there, so a
first step that wrecks the model is undone at once and costs a rung; and where nothing could be told by a round, the
rate that was given rises while nothing happens. Where votes cannot be seen, that rate is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import ClassVar, Literal, NamedTuple

from fedhyper.arrays import cosine
from fedhyper.automatic.damage import Damage, DamageState
from fedhyper.automatic.follow import Follow
from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder
from fedhyper.automatic.tries import LOST, NEAR, Tried, Tries
from fedhyper.averages import LastRounds
from fedhyper.optimizers import Momentum
from fedhyper.plan import PlanState, Seen, Shape
from fedhyper.settings import check_settings, setting

LINEAR = 0.9  # a cosine above which an update is the last one over again: the rate is far too low
ALARM = 4.0  # times what a client gains by itself, or clients differ by: a loss so far above the first is a wreck
LOWER = 3  # rungs that harm may take from what clients found by trying once: a rate that does nothing is no way out
MOST_CUTS = 2.0  # rungs: a rate ten times too high by the votes is reached, and a floor to come back from


class AutoState(NamedTuple):
    """What ``Auto`` remembers; the rate in force is ``base`` · e^``c`` · ratio^−(``cuts`` + what ``shape`` says)."""

    phase: Literal["start", "follow"] = "start"
    t: int = 0  # rounds with a usable update
    base: float = math.nan  # the rate that votes led to, or that was given
    votes: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()  # what the voters gained
    c: float = 0.0
    cuts: float = 0.0  # rungs below what it would be, for damage; heals
    times: int = 0  # how often there was damage
    damage: DamageState = DamageState()
    climbed: bool = False  # whether the votes are those of clients that tried several rates each
    shape: Shape = Shape()  # how steps differ in a run that was seen to its end

    @property
    def tried(self) -> Tried:
        """In the start of clients that train once: what they have tried so far, at the weights they were all sent."""
        return tuple(zip(self.votes, self.gains, strict=True)) if self.phase == "start" and not self.climbed else ()

    @property
    def first(self) -> float:
        """The loss at those weights; NaN: nobody has said."""
        return self.damage.first


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The learning-rate-free plan. ``local_lr`` is a hint: where clients' rates begin in a host that shows no votes.

    Seven constants, none of them a rate: ratio, voices, ahead, gain, share, momentum, recency. Fixed besides: at most
    two rungs for damage; in the simulator's start a panel of 50, a race of ``ahead`` rounds of ``voices`` clients, at
    most twice as many, until half of what a client gains is gained (at the end of a run no longer than ``ahead``:
    anything), and global rates half a rung apart; where clients train once what
    tries.py says, an alarm at four times what a client gains, at most three rungs for harm, two to follow, a rise while
    h > 0.9 or nothing happens.
    """

    local_lr: float = setting(0.01, "a hint, used only where clients cannot try rates out", above=0)
    global_lr: float = setting(
        1.0, "multiplies the hint; the global rate is 1, or found in a run short enough to be seen whole", above=0
    )
    ratio: float = setting(
        10**0.5,
        "factor between two rates that are tried, and how far the rate may move from the best; raising it is coarser",
        above=1,
        high=100,
    )
    voices: int = setting(
        10,
        "clients that must vote, and rounds until the step of the rate has halved; raising it is safer and slower",
        low=1,
        high=1000,
    )
    ahead: int = setting(
        12,
        "rounds that rates compete for in the start, if there are as many; raising it sees further and costs more",
        low=1,
        high=1000,
    )
    gain: float = setting(
        2.0,
        "step of the rate's logarithm, in rounds, for rungs √10 apart, and as much longer as others are further apart;"
        " raising it follows faster and noisier",
        low=0,
    )
    share: float = setting(
        0.8,
        "weights count as damaged when this share of the fall of the loss so far is lost again; raising it bears more",
        above=0,
        high=1,
    )
    momentum: float = setting(0.8, "share of the last server step in the next one; higher is smoother", low=0, below=1)
    recency: float = setting(
        3.0,
        "the mean that is kept spans about 1/(1 + recency) of the run; raising it stays nearer the newest",
        low=0,
    )
    requires: ClassVar[frozenset[str]] = frozenset(("delta", "losses"))
    compares: ClassVar[Literal["step"]] = "step"
    products_only: ClassVar[bool] = True
    graft: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def ladder(self) -> Ladder:
        """How the start is made."""
        return Ladder(self.ratio, self.voices, self.ahead)

    @property
    def optimizer(self) -> Momentum:
        """The server's step has momentum, which grows over the first rounds."""
        return Momentum(momentum=self.momentum, warmup=2.0)

    @property
    def average(self) -> LastRounds:
        """A mean of the last rounds."""
        return LastRounds(self.recency)

    def init(self) -> PlanState:
        """The clients of the first round try rates out."""
        hint = self.local_lr * self.global_lr
        return PlanState(1.0, hint, "good", 0.0, AutoState(base=hint), climbs=True)

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """Count votes, judge the weights, follow the hypergradient."""
        old, ladder = state.memory, self.ladder
        if old.phase == "start" and seen.votes is not None and not seen.climbed:
            return self._try(state, seen)
        votes, gains, base = old.votes, old.gains, old.base
        if old.phase == "start" and seen.votes is not None:
            usable = [(rung, gain) for rung, gain in seen.votes if LOWEST <= rung <= HIGHEST]
            votes = (*votes, *(rung for rung, _ in usable))
            gains = (*gains, *(gain for _, gain in usable if 0 <= gain < math.inf))
            base = ladder.settle(votes) if votes else base
        # enough have voted, or nobody ever will: a host that shows no votes is not waited for
        starting = old.phase == "start" and seen.votes is not None and len(votes) < self.voices and old.t < self.voices
        phase: Literal["start", "follow"] = "start" if starting else "follow"

        climbed, unit = old.climbed or seen.climbed, median_low(gains) if gains else 0.0
        if not climbed and old.t == 1 and unit == old.damage.margin == 0:  # too few have said what they began with
            old = old._replace(damage=old.damage.differing(seen.losses))
        alarm = math.inf if climbed else ALARM * max(unit, old.damage.margin)
        unit = max(unit, ALARM * old.damage.margin)  # 0 where clients climbed
        damage = Damage(self.share, self.voices).update(
            old.damage,
            seen.losses,
            unit,
            refuted=seen.refuted,
            alarm=alarm if alarm > 0 and old.t < 2 * self.voices and base > self._least(old) else math.inf,
        )
        h = float(cosine(seen.delta, seen.before))
        shape = max(old.shape, seen.shape)
        known = old._replace(votes=votes, gains=gains, base=base, phase=phase, damage=damage)
        least = 0.0 if climbed else self._least(old)
        early = not climbed and old.t <= self.voices and base > least  # of a start that tells less: not an accident
        if damage.verdict == "damaged" and not early:
            return self._cut(state, known)
        if damage.verdict == "damaged" or damage.verdict == "harmed":  # the start was wrong: it is not come back to
            lower = known._replace(t=old.t + 1, base=max(base / self.ratio, least), shape=shape._replace(lift=0))
            return PlanState(1.0, self._rate(lower), "damaged", math.nan, lower, climbs=starting)
        rises = not (climbed or starting) and self._idles(old, damage, seen.losses, h, state.hypergrad)
        base = base * self.ratio if rises else base  # nothing has happened, so nothing is risked
        # what is known to within a rung is moved by a rung; what was tried once a client by two, what was given by four
        reach = 1 if climbed else 2 if votes else 4
        c = Follow(self.ratio**reach, self._gain, self.voices).update(old.c, h, old.t)
        # it heals in the steps of the rate, which shrink: a rate that did damage is not soon come back to
        healed = max(0.0, old.cuts - 1 / ((old.t + self.voices) * old.times)) if old.times else 0.0
        heard = damage._replace(rounds=0, worse=0) if starting else damage  # rates only tried out may well do harm
        heard = heard._replace(heard=()) if rises else heard  # what comes next is of another rate
        memory = AutoState(phase, old.t + 1, base, votes, gains, c, healed, old.times, heard, climbed, shape)
        return PlanState(
            shape.global_lr(old.t, self.ratio), self._rate(memory), damage.verdict, h, memory, climbs=starting
        )

    def _try(self, state: PlanState, seen: Seen) -> PlanState:
        """Clients tried one rate each. The weights wait (``climbs``) until that tells enough."""
        old: AutoState = state.memory
        usable = [(rung, gain) for rung, gain in seen.votes or () if LOWEST <= rung <= HIGHEST and math.isfinite(gain)]
        tries = Tries(self.ladder, (*old.tried, *usable), short=seen.enough and not old.tried)
        damage = Damage(self.share, self.voices).meet(old.damage, seen.losses)
        if not (tries.done or seen.enough or old.t + 1 >= self.voices):
            rungs, gains = zip(*tries.tried, strict=True)
            waiting = old._replace(t=old.t + 1, votes=rungs, gains=gains, damage=damage)
            return PlanState(1.0, state.local_lr, "good", 0.0, waiting, climbs=True)
        best, found, lost = tries.best(), tries.found, [rung for rung, gain in tries.tried if gain <= -LOST]
        votes, gains = ((), ()) if best is None or found is None else ((found,), (best.gain,))
        base = old.base if found is None else self.ladder.rate(found)
        if lost and len(lost) == len(tries.tried):  # every rate diverged: so would the one that was given, unless lower
            base = min(base, self.ladder.rate(max(min(lost) - 1, LOWEST)))
        memory = AutoState("follow", 1, base, votes, gains, damage=Damage.met(damage))
        return PlanState(1.0, base, "good", 0.0, memory)

    def _least(self, memory: AutoState) -> float:
        """The lowest rate that harm may lead to where clients trained once: below what they found, or was given."""
        start = self.ladder.rate(memory.votes[0]) if memory.votes else self.local_lr * self.global_lr
        return float(start * self.ratio ** (-LOWER - 0.01))

    def _idles(self, old: AutoState, damage: DamageState, losses: Sequence[float], h: float, last: float) -> bool:
        """Whether the rate is so low that nothing has happened yet: by losses, where it is known how far clients
        differ, no more than twice that; and an update is the last one over again, or nothing was told about rates.
        Damage and harm are something: clients may differ by more than there is to gain."""
        if old.times or damage.harms:
            return False
        # where single clients are not seen no loss can speak against a rise, so two rounds have to agree to it
        if not old.votes and damage.margin == 0:
            return min(h, last if old.t > 1 else 1.0) > LINEAR and old.t < 2 * self.voices
        if old.votes and old.base > self.ladder.rate(old.votes[0] + NEAR - 0.5):  # nearer to what did harm
            return False
        heard = (damage.heard, losses)
        still = all(abs(median_low(some) - damage.first) <= 2 * damage.margin for some in heard if some)
        return still and (h > LINEAR or (not old.votes and len(damage.heard) >= self.voices))

    def nonsense(self, state: PlanState) -> PlanState:
        """No update was usable, and some were not finite: clients diverge. As damage, and they climb no more."""
        return self._cut(state, state.memory._replace(phase="follow"))

    def _cut(self, state: PlanState, memory: AutoState) -> PlanState:
        """A rung less, which comes back by 1/(t + voices) a round, the second time half as fast."""
        cuts = min(memory.cuts + 1, MOST_CUTS)
        c, shape = min(memory.c, 0.0), memory.shape._replace(lift=0)  # it goes on falling: a rung less is less
        memory = memory._replace(t=memory.t + 1, c=c, cuts=cuts, times=memory.times + 1, shape=shape)
        return PlanState(1.0, self._rate(memory), "damaged", math.nan, memory, climbs=memory.phase == "start")

    @property
    def _gain(self) -> float:
        """Of the logarithm: a rate that is a wider rung off has further to go."""
        return self.gain * (math.log(self.ratio) / math.log(10**0.5))

    def _rate(self, memory: AutoState) -> float:
        below = memory.cuts + memory.shape.fallen(memory.t)
        return float(memory.base * math.exp(memory.c) * self.ratio**-below)


def auto(*, local_lr: float = 0.01, global_lr: float = 1.0) -> Auto:
    """The plan to use when you do not know the rates: it finds them. ``local_lr`` is a hint and need not be given."""
    return Auto(local_lr=local_lr, global_lr=global_lr)
