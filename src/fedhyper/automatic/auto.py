"""Learning-rate-free: no rate to choose, for any client optimizer, from the aggregate, losses, and one vote a client.

    start    clients of the first round try rates out and vote; a panel checks that    ladder.py, sim/start.py
    follow   within a factor of it, the hypergradient moves the rate, less and less   follow.py
    damage   if most clients meet weights that were damaged: back, and a rung lower   damage.py
    harm     if most rounds meet a loss above the first one: the same, and for good   damage.py
    asked    where many clients can be: whether going back is better for what is kept  sim/start.py
    step     M_t = Δ_t + min(μ, k/(k + 2)) · M_t-1, w ← w − M_t                       optimizers.py
    keep     a mean over about the last quarter of the run                            averages.py

Where clients cannot climb, each tries one rate, or the rate given is all there is; with fewer than ``voices`` of them a
round the start takes several rounds. That tells less: the run then begins a rung lower, may move by four, and for its
first rounds rises a rung whenever an update is the last one over again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median_low
from typing import ClassVar, Literal, NamedTuple

from fedhyper.arrays import cosine
from fedhyper.automatic.damage import Damage, DamageState
from fedhyper.automatic.follow import Follow
from fedhyper.automatic.ladder import HIGHEST, LOWEST, Ladder
from fedhyper.averages import LastRounds
from fedhyper.optimizers import Momentum
from fedhyper.plan import PlanState, Seen
from fedhyper.settings import check_settings, setting

LINEAR = 0.9  # a cosine above which an update is the last one over again: the rate is far too low
MOST_CUTS = 2.0  # rungs: a rate ten times too high by the votes is reached, and a floor to come back from


class AutoState(NamedTuple):
    """What ``Auto`` remembers; the rate in force is ``base`` · e^``c`` · ratio^−``cuts``."""

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


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The learning-rate-free plan. ``local_lr`` is a hint: where clients' rates begin in a host that shows no votes.

    Seven constants, none of them a rate: ratio, voices, ahead, gain, share, momentum, recency. Fixed besides: at most
    two rungs for damage; in the simulator's start a panel of 50 and a race of up to 24 rounds, until half of what a
    client gains is gained; where clients train once a start one rung lower, four rungs to move, a rise while h > 0.9.
    """

    local_lr: float = setting(0.01, "a hint, used only where clients cannot try rates out", above=0)
    global_lr: float = setting(1.0, "multiplies the hint; the global rate itself is 1", above=0)
    ratio: float = setting(
        10**0.5, "factor between two rates that are tried, and how far the rate may move from the best", above=1
    )
    voices: int = setting(
        10, "clients that decide anything, and rounds until the step of the rate has halved; raising it is surer", low=1
    )
    ahead: int = setting(
        12,
        "rounds that rates compete for in the start, if there are as many; raising it sees further and costs more",
        low=1,
    )
    gain: float = setting(2.0, "step of the rate's logarithm, in rounds; raising it follows faster and noisier", low=0)
    share: float = setting(0.8, "share of what was gained so far whose loss counts as damage", above=0, high=1)
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
        votes, gains, base = old.votes, old.gains, old.base
        if old.phase == "start" and seen.votes is not None:
            usable = [(rung, gain) for rung, gain in seen.votes if LOWEST <= rung <= HIGHEST]
            votes = (*votes, *(rung for rung, _ in usable))
            gains = (*gains, *(gain for _, gain in usable if 0 <= gain < math.inf))
            # one try a client tells less: a rung lower, from where the hypergradient leads up better than down
            base = ladder.settle(votes) / (1 if seen.climbed else self.ratio) if votes else base
        # enough have voted, or nobody ever will: a host that shows no votes is not waited for
        starting = old.phase == "start" and seen.votes is not None and len(votes) < self.voices and old.t < self.voices
        phase: Literal["start", "follow"] = "start" if starting else "follow"

        unit = median_low(gains) if gains else 0.0
        damage = Damage(self.share, self.voices).update(old.damage, seen.losses, unit, refuted=seen.refuted)
        h = float(cosine(seen.delta, seen.before))
        known = old._replace(votes=votes, gains=gains, base=base, phase=phase, damage=damage)
        if damage.verdict == "damaged":
            return self._cut(state, known)
        if damage.verdict == "harmed":  # the start was wrong, and what it found is not come back to
            lower = known._replace(t=old.t + 1, base=base / self.ratio)
            return PlanState(1.0, self._rate(lower), "damaged", math.nan, lower, climbs=starting)
        climbed = old.climbed or seen.climbed
        if not (climbed or starting) and h > LINEAR and old.t < 2 * self.voices:
            base *= self.ratio  # where the start tells little: nothing has happened yet, so nothing is risked
        # what is known to within a rung is moved by a rung; what was tried once a client, or given, by four
        c = Follow(self.ratio if climbed else self.ratio**4, self.gain, self.voices).update(old.c, h, old.t)
        # it heals in the steps of the rate, which shrink: a rate that did damage is not soon come back to
        healed = max(0.0, old.cuts - 1 / ((old.t + self.voices) * old.times)) if old.times else 0.0
        heard = damage._replace(rounds=0, worse=0) if starting else damage  # rates only tried out may well do harm
        memory = AutoState(phase, old.t + 1, base, votes, gains, c, healed, old.times, heard, climbed)
        return PlanState(1.0, self._rate(memory), damage.verdict, h, memory, climbs=starting)

    def nonsense(self, state: PlanState) -> PlanState:
        """Every reply was refused: clients diverge. As damage, and they climb no more."""
        return self._cut(state, state.memory._replace(phase="follow"))

    def _cut(self, state: PlanState, memory: AutoState) -> PlanState:
        """A rung less, which comes back by 1/(t + voices) a round, the second time half as fast."""
        memory = memory._replace(
            t=memory.t + 1, c=min(memory.c, 0.0), cuts=min(memory.cuts + 1, MOST_CUTS), times=memory.times + 1
        )
        return PlanState(1.0, self._rate(memory), "damaged", math.nan, memory, climbs=memory.phase == "start")

    def _rate(self, memory: AutoState) -> float:
        return float(memory.base * math.exp(memory.c) * self.ratio**-memory.cuts)


def auto(*, local_lr: float = 0.01, global_lr: float = 1.0) -> Auto:
    """The plan to use when you do not know the rates: it finds them. ``local_lr`` is a hint and need not be given."""
    return Auto(local_lr=local_lr, global_lr=global_lr)
