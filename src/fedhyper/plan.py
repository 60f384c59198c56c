"""Both rates of a run together: what the server decides each round, in the simulator and in Flower alike.

    state = plan.init()                                          local_lr goes to the clients
    state = plan.update(state, delta, loss=..., sq_norm=...)     after they answered
    step = delta + state.momentum · step                         None: the server's optimizer decides; rollback: 0
    w = good if state.rollback else w − state.global_lr · step
    good = the w before this round, if state.settled             else it stays what it was
    mean = mean + state.newest · (w − mean)                      to evaluate and to keep; at newest = 1 it is w

``delta`` is the aggregate; ``loss`` the mean over clients of their first batch's loss, at the weights they were sent;
``sq_norm`` the mean of |Δ_m|². All three survive secure aggregation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fedhyper.arrays import Array
from fedhyper.baselines import Constant
from fedhyper.schedulers import LRState, Rule


class PlanState(NamedTuple):
    """The two rates, whether to return to the last good weights, and the states underneath.

    newest   share of the new weights in the mean that is evaluated and kept
    settled  whether the weights before this round are good; a plan that is still trying rates out does not know,
             and what a server's optimizer remembers of such rounds is forgotten
    momentum share of the last step in this one, dimensionless: step_t = Δ_t + momentum · step_t-1; None: no opinion
    """

    global_lr: float
    local_lr: float
    rollback: bool
    hypergrad: float
    parts: tuple[Any, ...]
    newest: float = 1.0
    settled: bool = True
    momentum: float | None = None


class Plan(Protocol):
    """What decides both rates of a round. ``requires`` names what it reads: delta, loss, sq_norm."""

    @property
    def requires(self) -> frozenset[str]:
        """What ``update`` reads; the rest need not be measured."""

    def init(self) -> PlanState:
        """The rates before the first round."""

    def update(self, state: PlanState, delta: Array, *, loss: float, sq_norm: float) -> PlanState:
        """``global_lr`` is for this round's delta, ``local_lr`` for the clients' next round."""

    def lost(self, state: PlanState) -> PlanState:
        """The state after a round without a usable update: every one was missing, or not finite."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One rule for the global rate and one for the local rate: FedAvg, G, SL, G+SL, FedExP, the decays."""

    global_rule: Rule = field(default_factory=Constant)
    local_rule: Rule = field(default_factory=lambda: Constant(lr=0.01))

    @property
    def requires(self) -> frozenset[str]:
        """What either rule reads."""
        return frozenset((*self.global_rule.requires, *self.local_rule.requires))

    def init(self) -> PlanState:
        """The local rule runs a round ahead, its rate being for the next one: its first, neutral update is spent."""
        local = self.local_rule.update(self.local_rule.init(), *[0.0 for _ in self.local_rule.requires])
        return self._state(self.global_rule.init(), local)

    def update(self, state: PlanState, delta: Array, *, loss: float = math.nan, sq_norm: float = math.nan) -> PlanState:
        """Show both rules what they ask for."""
        seen = {"delta": delta, "loss": loss, "sq_norm": sq_norm}
        parts = [
            rule.update(part, *[seen[name] for name in rule.requires])
            for rule, part in zip((self.global_rule, self.local_rule), state.parts, strict=True)
        ]
        return self._state(*parts)

    def lost(self, state: PlanState) -> PlanState:
        """Nothing was seen, nothing changes."""
        return state

    def _state(self, glob: LRState, local: LRState) -> PlanState:
        hypergrad = glob.hypergrad if "delta" in self.global_rule.requires else local.hypergrad
        return PlanState(glob.lr, local.lr, False, hypergrad, (glob, local))
