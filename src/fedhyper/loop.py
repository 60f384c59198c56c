"""One federated round of the server, in one place: whoever hosts it only fetches from clients and delivers to them.

    state = loop.init(weights)                       send state.now.weights and state.local_lr to the clients
    state, decision = loop.update(state, report)     after they answered; evaluate and keep state.mean.weights

The plan decides the rates and judges the weights; everything that is done about it is here:

    step = optimizer(Δ_t)
    w    = w − α_t · step            or back to the last good weights, if these were damaged
    mean = average(mean, w)          what is evaluated and kept

Pure: the old state stays valid. Weights are one array, or a list or dict of arrays: NumPy, torch, plain numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedhyper.arrays import Array, inner, plus
from fedhyper.automatic.auto import auto
from fedhyper.averages import Averaging, Model
from fedhyper.guard import all_finite
from fedhyper.optimizers import Moments, ServerOptimizer
from fedhyper.plan import Plan, PlanState, Seen, Shape


class RoundReport(NamedTuple):
    """What the clients of one round sent, summed up over those that can be believed. Every field may be missing.

    delta       Σ p_m Δ_m, Δ_m = before − after; None: there is no usable update
    losses      the clients' losses at the weights they were sent, of any sign: one each, or their mean alone where
                single clients are not seen. Empty: nobody reports one, and the round says nothing about damage; one
                that is not finite counts as a very high one
    sq_norm     Σ p_m |Δ_m|². None: |Δ|², which it cannot be below, stands for it
    statistics  the clients' mean of what is averaged and never stepped. None: it stays what it was
    refused     replies that could not be believed because their numbers were not finite, as a rate that is too high
                makes them. Where no update is usable, any of them says that; a reply that was refused for anything
                else, and nobody answering (0), say nothing
    votes       (rung, what was gained) of each client that tried rates out. None: the host cannot let them
    climbed     whether each of them tried several rates by itself; otherwise one each, which tells less. Without votes:
                whether the rate that was given is to be kept to within a rung
    aggregate   w − Δ, where the host has it: a step of exactly Δ takes it as it is
    stepped     the weights a server optimizer of the host's own arrived at, which then takes the place of the loop's
    enough      whether trying rates out, one a client, is to end with this round: a run must not be all start
    shape       with the votes: what the host found to be better for a run that it has seen to its end
    refuted     whether the host, on a rollback, asked many clients and found nothing damaged: the same report with
                this set, to the same state, goes on instead
    """

    delta: Array | None = None
    losses: tuple[float, ...] = ()
    sq_norm: float | None = None
    statistics: Array | None = None
    refused: int = 0
    votes: tuple[tuple[int, float], ...] | None = None
    climbed: bool = False
    aggregate: Array | None = None
    stepped: Array | None = None
    refuted: bool = False
    enough: bool = False
    shape: Shape = Shape()


class Decision(NamedTuple):
    """What was done in a round, and the rates after it.

    action     "step": the weights moved; "rollback": they are the last good ones again; "idle": they are as they were
    global_lr  α_t, which this round's step was multiplied with
    local_lr   β_t+1, for the clients' next round
    hypergrad  what moved the rates; NaN: it could not be used
    forget     whether a server optimizer of the host's own must forget what it remembers
    """

    action: Literal["step", "rollback", "idle"]
    global_lr: float
    local_lr: float
    hypergrad: float
    forget: bool


class LoopState(NamedTuple):
    """Everything that changes from round to round.

    round     rounds done
    now       to send next
    good      where a rollback returns to
    mean      to evaluate and to keep
    averaged  rounds in the mean
    plan      the rates, the verdict and the plan's memory
    moments   the server optimizer's memory
    before    what the next Δ is compared with: the last one, or the last step; 0: nothing yet, or not any more
    idle      rounds in a row without a usable update
    """

    round: int
    now: Model
    good: Model
    mean: Model
    averaged: int
    plan: PlanState
    moments: Moments
    before: Array
    idle: int

    @property
    def local_lr(self) -> float:
        """β_t, for the clients of the next round."""
        return self.plan.local_lr

    @property
    def climbs(self) -> bool:
        """Whether the clients of the next round are to try rates out, if they can."""
        return self.plan.climbs


@dataclass(frozen=True)
class ServerLoop:
    """The server's side of a run: what decides, what makes a step of an aggregate, and what is averaged.

    plan       decides both rates and judges the weights; default: ``auto()``, learning-rate-free
    optimizer  makes a step of Δ; None: the plan's own choice
    average    what is evaluated and kept; None: the plan's own choice
    """

    plan: Plan = field(default_factory=auto)
    optimizer: ServerOptimizer | None = None
    average: Averaging | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.plan, "nonsense"):  # a rule alone, say, or a name
            what = f"plan = {self.plan!r} decides no pair of rates"
            raise TypeError(f"{what}; use auto(), or Pair(global_rule=FedHyperG()) for a rule")

    @property
    def steps_with(self) -> ServerOptimizer:
        """The optimizer in force."""
        return self.plan.optimizer if self.optimizer is None else self.optimizer

    @property
    def keeps(self) -> Averaging:
        """The average in force."""
        return self.plan.average if self.average is None else self.average

    def init(self, weights: Array, statistics: Array = 0.0) -> LoopState:
        """The state before the first round."""
        model = Model(weights, statistics)
        return LoopState(0, model, model, model, 0, self.plan.init(), self.steps_with.init(), 0.0, 0)

    def update(self, state: LoopState, report: RoundReport) -> tuple[LoopState, Decision]:
        """The state after a round, and what was done in it."""
        delta = report.delta
        trying = state.climbs and report.votes is not None and not report.climbed
        if trying:  # one rate each, all at these weights, which stay until that has told enough
            seen = Seen(0.0, 0.0, report.losses, votes=report.votes, enough=report.enough)
            plan = self.plan.update(state.plan, seen)
            if delta is None or plan.climbs:
                return _decided(state._replace(round=state.round + 1, plan=plan, idle=0), "idle", forget=False)
        elif delta is None:
            return self._idle(state, refused=report.refused > 0, refuted=report.refuted)
        else:
            sq_norm = float(inner(delta, delta)) if report.sq_norm is None else report.sq_norm
            seen = Seen(delta, state.before, report.losses, sq_norm, report.votes, report.climbed, report.refuted)
            plan = self.plan.update(state.plan, seen._replace(shape=report.shape))
        if plan.verdict == "damaged":
            return self._back(state, plan)

        if report.stepped is None:
            direction, moments = self.steps_with.update(state.moments, delta)
        else:
            direction, moments = plus(state.now.weights, -1.0, report.stepped), state.moments
        rate = plan.global_lr * self._graft(delta, direction)
        if rate == 1 and report.stepped is not None:
            weights = report.stepped
        elif rate == 1 and direction is delta and report.aggregate is not None:
            weights = report.aggregate
        else:
            weights = plus(state.now.weights, -rate, direction)
        if not all_finite(weights):
            return self._idle(state, refused=True, refuted=report.refuted)
        now = Model(weights, state.now.statistics if report.statistics is None else report.statistics)
        averaged = state.averaged + 1
        new = LoopState(
            round=state.round + 1,
            now=now,
            good=state.now if plan.verdict == "good" else state.good,
            mean=self.keeps.update(state.mean, state.now, now, averaged),
            averaged=averaged,
            plan=plan,
            moments=moments,
            before=direction if self.plan.compares == "step" else delta,
            idle=0,
        )
        return _decided(new, "step", forget=False)

    def _graft(self, delta: Array, direction: Array) -> float:
        """Adam's direction has no unit: under a plan whose rates are in lengths of Δ it is given a multiple of that.

        (Agarwal et al., *Learning Rate Grafting*, 2020.) Momentum has the unit and needs no graft.
        """
        if self.plan.graft is None or not self.steps_with.unitless:
            return 1.0
        length = math.sqrt(float(inner(direction, direction)))
        return self.plan.graft * math.sqrt(float(inner(delta, delta))) / length if length > 0 else 0.0

    def _back(self, state: LoopState, plan: PlanState) -> tuple[LoopState, Decision]:
        good, fresh = state.good, self.steps_with.init()
        back = LoopState(state.round + 1, good, good, good, 0, plan, fresh, before=0.0, idle=0)
        return _decided(back, "rollback", forget=True)

    def _idle(self, state: LoopState, *, refused: bool, refuted: bool = False) -> tuple[LoopState, Decision]:
        """Without a usable update the weights stay; that replies were not finite is news for the plan.

        In two rounds in a row it says that the weights are a wreck, from which every client diverges: back to the good
        ones. Not in one: where one client trains in a round that would be this client's to decide.
        """
        plan = self.plan.nonsense(state.plan) if refused else state.plan
        forget = refused and plan.verdict == "damaged"
        if forget and state.plan.verdict == "damaged" and state.averaged and not refuted:  # and not only just returned
            back, decision = self._back(state, plan)
            return back._replace(idle=state.idle + 1), decision
        moments, before = (self.steps_with.init(), 0.0) if forget else (state.moments, state.before)
        new = state._replace(round=state.round + 1, plan=plan, moments=moments, before=before, idle=state.idle + 1)
        return _decided(new, "idle", forget=forget)


def _decided(
    state: LoopState, action: Literal["step", "rollback", "idle"], *, forget: bool
) -> tuple[LoopState, Decision]:
    plan = state.plan
    return state, Decision(action, plan.global_lr, plan.local_lr, plan.hypergrad, forget)
