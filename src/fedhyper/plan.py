"""What decides both rates of a run, round by round, and judges the weights. ``loop`` acts on it.

    state = plan.init()                    local_lr goes to the clients
    state = plan.update(state, seen)       after they answered: global_lr for this round's step, local_lr for the next

A plan reads the aggregate, the clients' losses or their mean, and in its start one vote a client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from fedhyper.arrays import Array
from fedhyper.automatic.ladder import Ladder
from fedhyper.averages import Averaging, Newest
from fedhyper.baselines import Constant
from fedhyper.optimizers import Average, ServerOptimizer
from fedhyper.schedulers import LRState, Rule


class Shape(NamedTuple):
    """How the steps of a run that was seen to its end differ from those of one that was not.

    lift    half rungs by which the global rate is above 1 in every round; more makes longer steps
    fall    rungs by which the local rate falls from the first round to the last; more makes later steps shorter
    rounds  how many were seen, 0 or more; what comes after them has a global rate of 1 and does not fall
    """

    lift: int = 0
    fall: int = 0
    rounds: int = 0

    def global_lr(self, t: int, ratio: float) -> float:
        """The global rate in round t, from 0."""
        return float(ratio ** (self.lift / 2)) if t < self.rounds else 1.0

    def fallen(self, t: int) -> float:
        """Rungs by which the local rate has fallen by round t, from 0."""
        return self.fall * t / (self.rounds - 1) if t < self.rounds > 1 else 0.0


class Seen(NamedTuple):
    """What a plan is shown of a round; see ``loop.RoundReport``.

    delta    Δ_t, the aggregate
    before   what it is compared with: Δ_t-1, or the step the server made last (``compares``); 0: there is none
    losses   the clients' losses at the weights they were sent, or their mean alone; empty: nobody reports one
    sq_norm  Σ p_m |Δ_m|²
    votes    (rung, what was gained) of each client that tried rates out; None: none could
    climbed  whether each of them tried several rates by itself
    refuted  whether many clients were asked after these losses raised an alarm, and there is no damage
    enough   whether trying rates out is to end with this round
    shape    with the votes: what was found to be better for a run that was seen to its end
    """

    delta: Array
    before: Array = 0.0
    losses: tuple[float, ...] = ()
    sq_norm: float = math.nan
    votes: tuple[tuple[int, float], ...] | None = None
    climbed: bool = False
    refuted: bool = False
    enough: bool = False
    shape: Shape = Shape()


class PlanState(NamedTuple):
    """The two rates, a verdict on the weights that the clients were sent, and what the plan remembers.

    global_lr  α_t above 0, which this round's step is multiplied with
    local_lr   β_t+1 above 0, for the clients' next round
    verdict    "good": they can be returned to; "fair": there were better ones; "damaged": go back
    hypergrad  what moved the rates; NaN: it could not be used
    memory     the plan's own, made of numbers, arrays, tuples and NamedTuples, so that it can be saved
    climbs     whether the clients of the next round are to try rates out (``automatic.ladder``)
    """

    global_lr: float
    local_lr: float
    verdict: Literal["good", "fair", "damaged"]
    hypergrad: float
    memory: Any
    climbs: bool = False

    @property
    def tried(self) -> tuple[tuple[int, float], ...]:
        """(rung, gain) of the clients that have tried a rate each so far, while the weights wait for them."""
        return getattr(self.memory, "tried", ())

    @property
    def first(self) -> float:
        """The loss at those weights; NaN: nobody has said."""
        return getattr(self.memory, "first", math.nan)


class Plan(Protocol):
    """What decides both rates of a round."""

    @property
    def requires(self) -> frozenset[str]:
        """Which of delta, losses and sq_norm ``update`` reads; the rest need not be measured."""

    @property
    def compares(self) -> Literal["delta", "step"]:
        """What Δ_t is compared with: the aggregate before it, or the step the server made last, momentum in it."""

    @property
    def products_only(self) -> bool:
        """Whether vectors are read through their inner products alone: a host may show them in another basis."""

    @property
    def graft(self) -> float | None:
        """Length of a step whose optimizer has no unit (Adam's), in lengths of Δ; None: as the optimizer has it."""

    @property
    def optimizer(self) -> ServerOptimizer:
        """What makes a step of Δ, unless the loop is given another."""

    @property
    def average(self) -> Averaging:
        """What is evaluated and kept, unless the loop is given another."""

    @property
    def ladder(self) -> Ladder | None:
        """How clients try rates out when the plan asks for it; None: it never does."""

    def init(self) -> PlanState:
        """The rates before the first round."""

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """``global_lr`` is for this round's step, ``local_lr`` for the clients' next round."""

    def nonsense(self, state: PlanState) -> PlanState:
        """The state after a round in which no update was usable, and some were not finite."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One rule for the global rate and one for the local rate: FedAvg, G, SL, G+SL, FedExP, the decays.

    global_rule  α: FedHyperG, Constant, Decay, FedExP; default: Constant(lr=1)
    local_rule   β: FedHyperSL, Constant, Decay; default: Constant(lr=0.01)
    average      what is evaluated and kept; default: the newest weights
    """

    global_rule: Rule = field(default_factory=Constant)
    local_rule: Rule = field(default_factory=lambda: Constant(lr=0.01))
    average: Averaging = field(default_factory=Newest)

    compares: Literal["delta"] = field(default="delta", init=False, repr=False)
    graft: None = field(default=None, init=False, repr=False)
    ladder: None = field(default=None, init=False, repr=False)
    optimizer: ServerOptimizer = field(default_factory=Average, init=False, repr=False)

    @property
    def requires(self) -> frozenset[str]:
        """What either rule reads."""
        return frozenset((*self.global_rule.requires, *self.local_rule.requires))

    @property
    def products_only(self) -> bool:
        """Whether both rules do; a rule that does not say so is shown the vectors themselves."""
        return all(getattr(rule, "products_only", False) for rule in (self.global_rule, self.local_rule))

    def init(self) -> PlanState:
        """The local rule runs a round ahead, its rate being for the next one: its first, neutral update is spent."""
        local = self.local_rule.update(self.local_rule.init(), *[0.0 for _ in self.local_rule.requires])
        return self._state(self.global_rule.init(), local)

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """Show both rules what they ask for."""
        parts = [
            rule.update(part, *[getattr(seen, name) for name in rule.requires])
            for rule, part in zip((self.global_rule, self.local_rule), state.memory, strict=True)
        ]
        return self._state(*parts)

    def nonsense(self, state: PlanState) -> PlanState:
        """Nothing was seen, nothing changes."""
        return state

    def _state(self, glob: LRState, local: LRState) -> PlanState:
        hypergrad = glob.hypergrad if "delta" in self.global_rule.requires else local.hypergrad
        return PlanState(glob.lr, local.lr, "good", hypergrad, (glob, local))
