"""Both rates together: who sees what, and when a rate is used. The learning-rate-free plan: test_auto.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhyper import Constant, Decay, FedExP, FedHyperG, FedHyperSL, Pair, PlanState, Seen


def update(plan: Pair, state: PlanState, delta: Any, *, loss: float | None = None, sq_norm: float = 0.0) -> PlanState:
    return plan.update(state, Seen(delta, 0.0, loss, sq_norm))


def test_a_pair_of_constants_is_fedavg() -> None:
    plan = Pair(local_rule=Constant(lr=0.05))
    state = plan.init()
    for delta in ([1.0], [1.0], [-1.0]):
        state = update(plan, state, delta)
        assert (state.global_lr, state.local_lr, state.verdict, state.hypergrad) == (1.0, 0.05, "good", 0.0)
    assert plan.requires == frozenset()


def test_a_pair_shows_each_rule_what_it_reads() -> None:
    plan = Pair(global_rule=FedExP(epsilon=1.0), local_rule=Decay(lr=0.1, factor=0.5))
    assert plan.requires == {"delta", "sq_norm"}
    state = plan.init()
    assert (state.global_lr, state.local_lr) == (1.0, 0.1)
    state = update(plan, state, [1.0, 0.0], sq_norm=12.0)
    assert (state.global_lr, state.local_lr) == (3.0, 0.05)  # 12 / (2 · (1 + 1)), and .1 · .5


@pytest.mark.parametrize("local_rule", [FedHyperSL(lr=0.3), Decay(lr=0.3), Constant(lr=0.3)])
def test_the_first_two_rounds_of_a_local_rule(local_rule: FedHyperSL | Decay | Constant) -> None:
    plan = Pair(local_rule=local_rule)
    assert plan.init().local_lr == 0.3
    if isinstance(local_rule, FedHyperSL):
        assert update(plan, plan.init(), [5.0]).local_lr == 0.3  # nothing to compare with in round 1


def test_a_round_without_updates_changes_nothing_in_a_pair() -> None:
    plan = Pair(global_rule=FedHyperG(), local_rule=Decay(lr=0.1))
    state = update(plan, plan.init(), [1.0])
    assert plan.nonsense(state) is state


def test_a_pair_reports_the_hypergradient_of_whichever_rule_has_one() -> None:
    for plan in (
        Pair(global_rule=FedHyperG()),
        Pair(local_rule=FedHyperSL()),
        Pair(global_rule=FedHyperG(), local_rule=Decay()),
    ):
        state = update(plan, update(plan, plan.init(), [0.5]), [0.25])
        assert state.hypergrad == 0.125


def test_a_pair_is_pure() -> None:
    plan = Pair(global_rule=FedHyperG(), local_rule=FedHyperSL())
    old = update(plan, plan.init(), np.array([0.1, 0.2]), loss=1.0)
    once, twice = (update(plan, old, np.array([0.2, 0.1]), loss=0.9) for _ in range(2))
    assert once[:4] == twice[:4]
    assert update(plan, plan.init(), np.array([0.1, 0.2]), loss=1.0)[:4] == old[:4]
