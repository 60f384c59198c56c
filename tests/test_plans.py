"""Both rates together: who sees what, when a rate is used, and the learning-rate-free plan by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedhyper import Auto, Constant, Decay, FedExP, FedHyperG, FedHyperSL, LossGuard, Pair, PlanState, auto

AUTO = Auto(
    local_lr=0.01,
    global_lr=1.0,
    hyper_lr=0.5,
    bound=100.0,
    retreat=4.0,
    guard=LossGuard(above_first=1.2, above_best=2.0),
)


def test_a_pair_of_constants_is_fedavg() -> None:
    plan = Pair(local_rule=Constant(lr=0.05))
    state = plan.init()
    for delta in ([1.0], [1.0], [-1.0]):
        state = plan.update(state, delta)
        assert (state.global_lr, state.local_lr, state.rollback, state.hypergrad) == (1.0, 0.05, False, 0.0)
    assert plan.requires == frozenset()


def test_a_pair_shows_each_rule_what_it_reads() -> None:
    plan = Pair(global_rule=FedExP(epsilon=1.0), local_rule=Decay(lr=0.1, factor=0.5))
    assert plan.requires == {"delta", "sq_norm"}
    state = plan.init()
    assert (state.global_lr, state.local_lr) == (1.0, 0.1)
    state = plan.update(state, [1.0, 0.0], sq_norm=12.0)
    assert (state.global_lr, state.local_lr) == (3.0, 0.05)  # 12 / (2 · (1 + 1)), and .1 · .5


@pytest.mark.parametrize("local_rule", [FedHyperSL(lr=0.3), Decay(lr=0.3), Constant(lr=0.3)])
def test_the_first_two_rounds_of_a_local_rule(local_rule: FedHyperSL | Decay | Constant) -> None:
    plan = Pair(local_rule=local_rule)
    assert plan.init().local_lr == 0.3
    if isinstance(local_rule, FedHyperSL):
        assert plan.update(plan.init(), [5.0]).local_lr == 0.3  # nothing to compare with in round 1


def test_a_round_without_updates_changes_nothing_in_a_pair() -> None:
    plan = Pair(global_rule=FedHyperG(), local_rule=Decay(lr=0.1))
    state = plan.update(plan.init(), [1.0])
    assert plan.lost(state) is state


def test_a_pair_reports_the_hypergradient_of_whichever_rule_has_one() -> None:
    for plan in (
        Pair(global_rule=FedHyperG()),
        Pair(local_rule=FedHyperSL()),
        Pair(global_rule=FedHyperG(), local_rule=Decay()),
    ):
        state = plan.update(plan.update(plan.init(), [0.5]), [0.25])
        assert state.hypergrad == 0.125


def test_plans_are_pure() -> None:
    for plan in (Pair(global_rule=FedHyperG(), local_rule=FedHyperSL()), AUTO):
        old = plan.update(plan.init(), np.array([0.1, 0.2]), loss=1.0)
        once, twice = (plan.update(old, np.array([0.2, 0.1]), loss=0.9) for _ in range(2))
        assert once[:4] == twice[:4]
        assert plan.update(plan.init(), np.array([0.1, 0.2]), loss=1.0)[:4] == old[:4]


def follow(plan: Auto, *rounds: tuple[list[float], float]) -> list[PlanState]:
    """The state after each round."""
    state, out = plan.init(), []
    for delta, loss in rounds:
        state = plan.update(state, delta, loss=loss)
        out.append(state)
    return out


def test_auto_by_hand() -> None:
    up = math.exp(0.5)
    states = follow(
        AUTO,
        ([1.0, 0.0], 2.0),  #  nothing to compare with
        ([9.0, 0.0], 1.9),  #  cosine 1: × e^.5
        ([0.0, 1.0], 1.8),  #  cosine 0
        ([0.0, -3.0], 1.7),  # cosine -1: / e^.5
        ([0.0, -3.0], 2.5),  # above 1.2 × 2: back, / 4
        ([0.0, 3.0], 1.7),  #  the direction of before the rollback is forgotten: neutral
        ([0.0, 3.0], math.nan),  # back again
    )
    expected = [0.01, 0.01 * up, 0.01 * up, 0.01, 0.0025, 0.0025, 0.000625]
    assert [state.local_lr for state in states] == pytest.approx(expected, rel=1e-12)
    assert [state.rollback for state in states] == [False, False, False, False, True, False, True]
    assert {state.global_lr for state in states} == {1.0}


def test_auto_spends_one_budget_on_the_local_rate() -> None:
    state = Auto(local_lr=0.02, global_lr=0.5).init()
    assert (state.global_lr, state.local_lr) == (1.0, 0.01)
    assert auto(local_lr=0.02, global_lr=0.5) == Auto(local_lr=0.02, global_lr=0.5)


def test_auto_stays_in_its_bounds() -> None:
    up = follow(AUTO, *[([1.0], 1.0)] * 50)
    assert up[-1].local_lr == pytest.approx(1.0)  # .01 · 100
    down = follow(AUTO, *[([1.0], math.nan)] * 50)
    assert down[-1].local_lr == pytest.approx(0.0001)
    assert all(0.0001 <= state.local_lr <= 1.0 for state in [*up, *down])


def test_auto_retreats_when_a_round_is_lost() -> None:
    state = follow(AUTO, ([1.0], 1.0), ([1.0], 1.0))[-1]
    lost = AUTO.lost(state)
    assert lost.local_lr == pytest.approx(state.local_lr / 4)
    assert lost.rollback
    after = AUTO.update(lost, [1.0], loss=1.0)
    assert (after.local_lr, after.rollback) == (lost.local_lr, False)


def test_auto_reads_the_delta_and_one_scalar() -> None:
    assert AUTO.requires == {"delta", "loss"}
    bad = AUTO.update(AUTO.update(AUTO.init(), [1.0], loss=1.0), [math.nan], loss=1.0)
    assert bad.local_lr == 0.01
    assert math.isnan(bad.hypergrad)
