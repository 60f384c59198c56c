"""The learning-rate-free plan: hand-worked steps, laws that hold for any input, and toy problems from every start."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from fedhyper import Adam, Auto, Average, Grafted, Momentum, PlanState, auto

ODD = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e300)


def follow(plan: Auto, *rounds: tuple[list[float], float, float]) -> list[PlanState]:
    """The state after each round of (delta, loss, |Δ_m|²/β²)."""
    state, out = plan.init(), []
    for delta, loss, slope in rounds:
        state = plan.update(state, delta, loss=loss, sq_norm=slope * state.local_lr**2)
        out.append(state)
    return out


def rates(states: list[PlanState]) -> list[float]:
    return [state.local_lr for state in states]


def test_by_hand() -> None:
    plan = Auto(
        probe=0.01, climb=3, hyper_lr=0.5, drive=0.1, momentum=0.5, brake=2, smoothing=0.5, slack=0.1, retreat=4
    )
    states = follow(
        plan,
        ([1, 0], 2.0, 1.0),  #   climb × 3
        ([1, 0], 2.0, 1.0),  #   climb × 3
        ([1, 0], 2.0, 0.1),  #   saturated once: wait
        ([0, 2], 2.0, 0.1),  #   twice: follow. h = 0: × e^(.5 · .1); M = (.5, 2)
        ([3, 4], 1.0, 0.1),  #   h = 9.5 / (5 · √4.25): × e^(.5 · (h + .1)); smooth 1.5, its best; M = (3.25, 5)
        ([0, -9], 2.0, 0.1),  #  h = -5 / √35.5625; smooth 1.75, p = .25 / min(1.5, .5); M = (1.625, -6.5)
        ([0, -9], 2.1, 0.1),  #  .6 above 1.5, more than the .5 that had been gained: back, / 4
        ([0, 1], 2.1, 0.1),  #   believed after a retreat. No direction, smooth 1.925, p = .85: × e^(.5 · (.1 - 1.445))
        ([0, 1], math.nan, 0.1),  # back, / 4
    )
    cosines = [9.5 / (5 * math.sqrt(4.25)), -5 / math.sqrt(35.5625)]
    assert [state.hypergrad for state in states[4:6]] == pytest.approx(cosines)
    signals = [0.0, cosines[0], cosines[1] - 2 * 0.5**2, -2 * 0.85**2]
    followed = [math.exp(0.5 * (signal + 0.1)) for signal in signals]
    factors = [3, 3, 1, *followed[:3], 1 / 4, followed[3], 1 / 4]
    assert states[5].parts[0].before == pytest.approx([1.625, -6.5])
    # Δ alone while it climbs; a retreat forgets the step
    assert [state.momentum for state in states] == [0.0] * 3 + [0.5] * 3 + [None, 0.5, None]
    assert rates(states) == pytest.approx(list(0.01 * np.cumprod(factors)), rel=1e-12)
    assert [state.rollback for state in states] == [False] * 6 + [True, False, True]
    assert {state.global_lr for state in states} == {1.0}
    # the climb has ended in round 4; before that no weights are known to be good
    assert [state.settled for state in states] == [False] * 3 + [True] * 6
    # the mean begins with the first real progress (round 5), and again after each retreat
    assert [state.newest for state in states] == [1, 1, 1, 1, 1, 17 / 18, 1, 1, 1]


@pytest.mark.parametrize(("recency", "shares"), [(0.0, [1, 1 / 2, 1 / 3]), (1.0, [1, 2 / 3, 1 / 2])])
def test_the_mean_weighs_its_newest_round_by_recency(recency: float, shares: list[float]) -> None:
    states = follow(Auto(recency=recency, smoothing=1.0), *[([1.0], loss, 1.0) for loss in (2.0, 1.0, 1.0, 1.0)])
    assert [state.newest for state in states[1:]] == pytest.approx(shares)


def test_one_odd_cohort_does_not_end_the_climb() -> None:
    states = follow(Auto(), *[([1.0], 2.0, slope) for slope in (1, 0.3, 1, 0.3, 1)])
    assert rates(states) == pytest.approx([0.003, 0.003, 0.009, 0.009, 0.027])


def test_with_one_local_step_a_falling_loss_ends_the_climb() -> None:
    losses = (2.0, 2.0, 1.89, 1.89, 1.89)  # 5 % below the first, twice
    states = follow(
        Auto(drive=0.0, momentum=0.0), *[([float(i % 2), float(1 - i % 2)], x, 1.0) for i, x in enumerate(losses)]
    )
    assert rates(states) == pytest.approx([0.003, 0.009, 0.009, 0.009, 0.009])


def test_clients_that_shoot_up_after_flattening_are_not_believed() -> None:
    states = follow(Auto(), *[([1.0], 2.0, slope) for slope in (1, 0.8, 9)])
    assert [state.rollback for state in states] == [False, False, True]
    assert rates(states)[-1] == pytest.approx(0.009 / 30)  # retreat · climb · what momentum adds to a step


def test_updates_lost_to_rounding_are_a_reason_to_climb() -> None:
    states = follow(Auto(), *[([1.0], 2.0, slope) for slope in (0, 0, 1, 50, 900)])
    assert not any(state.rollback for state in states)
    assert rates(states)[-1] == pytest.approx(0.001 * 3**5)


def test_below_the_probe_it_climbs_twice_as_fast() -> None:
    states = follow(Auto(local_lr=1e-5), *[([1.0], 2.0, 1.0)] * 4)
    assert rates(states) == pytest.approx([9e-5, 8.1e-4, 7.29e-3, 2.187e-2])


def test_no_start_is_believed_above_the_probe() -> None:
    assert [Auto(local_lr=b, global_lr=a).init().local_lr for b, a in ((1.0, 10.0), (1e-4, 0.1))] == [1e-3, 1e-5]
    assert auto(local_lr=0.02, global_lr=0.5) == Auto(local_lr=0.02, global_lr=0.5)
    assert auto().requires == {"delta", "loss", "sq_norm"}


@pytest.mark.parametrize("loss", ODD)
@pytest.mark.parametrize("sq_norm", ODD)
def test_any_input_leaves_rates_finite_and_in_bounds(loss: float, sq_norm: float) -> None:
    plan = Auto(bound=1e4)
    for entry, lead in product((*ODD, 1.0), range(3)):
        state = plan.init()
        for _ in range(lead):
            state = plan.update(state, [1.0, 1.0], loss=2.0, sq_norm=1e-6)
        for _ in range(20):
            state = plan.update(state, [entry, 1.0], loss=loss, sq_norm=sq_norm)
            assert 1e-3 / 1e4 * 0.999 <= state.local_lr <= 1e-3 * 1e4 * 1.001
            assert state.global_lr == 1.0
        for _ in range(9):
            state = plan.lost(state)
        state = plan.update(state, [1.0, 1.0], loss=2.0, sq_norm=1e-6)
        assert math.isfinite(state.local_lr)


def test_a_delta_that_is_not_finite_is_forgotten() -> None:
    states = follow(Auto(climb=1.0, saturated=1.0), ([1, 0], 1.0, 1), ([math.nan, 0], 1.0, 0.5), ([2, 0], 1.0, 0.5))
    assert math.isnan(states[1].hypergrad)
    assert states[2].hypergrad == 1.0


def test_pure() -> None:
    plan = Auto()
    old = plan.update(plan.init(), np.array([0.1, 0.2]), loss=1.0, sq_norm=0.1)
    once, twice = (plan.update(old, np.array([0.2, 0.1]), loss=0.9, sq_norm=0.2) for _ in range(2))
    assert once[:4] == twice[:4]
    assert once.parts[1] == twice.parts[1]
    assert old.parts[1].seen == 1


Step = Callable[[np.ndarray, float], tuple[np.ndarray, float, float]]


def quadratic(rng: np.random.Generator, noise: float) -> Step:
    """Ten clients, five local steps each on Σ c_i (w_i − o_i)²/2, c from 0.1 to 3, with their own minima o near 1."""
    curvature = np.geomspace(0.1, 3.0, 20)

    def round_(w: np.ndarray, lr: float) -> tuple[np.ndarray, float, float]:
        optima = 1 + noise * rng.standard_normal((10, 20))
        local = np.tile(w, (10, 1))
        loss = float((curvature * (local - optima) ** 2).sum(1).mean() / 2)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(5):
                local = local - lr * curvature * (local - optima)
            deltas = w - local
            return deltas.mean(0), loss, float((deltas**2).sum(1).mean())

    return round_


def train(plan: Auto, noise: float, rounds: int = 80) -> tuple[float, int]:
    """The distance to the minimum's loss at the end, and the number of retreats."""
    round_, w, good = quadratic(np.random.default_rng(0), noise), np.zeros(20), np.zeros(20)
    state, retreats, step = plan.init(), 0, np.zeros(20)
    for _ in range(rounds):
        delta, loss, sq_norm = round_(w, state.local_lr)
        state = plan.update(state, delta, loss=loss, sq_norm=sq_norm)
        retreats += state.rollback
        step = np.zeros(20) if state.rollback else delta + (state.momentum or 0.0) * step
        good = w if state.settled and not state.rollback else good
        w = good if state.rollback else w - state.global_lr * step
    return float((np.geomspace(0.1, 3.0, 20) * (w - 1) ** 2).sum() / 2), retreats


@pytest.mark.parametrize(("noise", "reached"), [(0.0, 1e-6), (0.5, 0.2), (1.0, 0.6)])
def test_a_healthy_quadratic_run_never_retreats(noise: float, reached: float) -> None:
    loss, retreats = train(Auto(), noise)
    assert loss < reached  # from 8.6
    assert retreats == 0


def test_the_rate_that_did_damage_is_not_tried_again_at_once() -> None:
    plan = Auto(hyper_lr=0.4, drive=9.0)  # eager to rise
    state = plan.lost(follow(plan, ([1.0], 2.0, 1.0), ([1.0], 2.0, 1.0))[-1])  # 0.009 did damage
    for _ in range(5):
        state = plan.update(state, [1.0], loss=2.0, sq_norm=state.local_lr**2)
    # with momentum it would have been a fifth; five rounds forget a little
    assert state.local_lr == pytest.approx(0.009 / 5 / math.sqrt(6) * math.exp(5 * 0.1))


def test_every_start_reaches_the_same_loss() -> None:
    losses = [train(Auto(local_lr=lr), 0.1)[0] for lr in (1e-5, 1e-4, 1e-2, 1.0, 10.0)]
    assert max(losses) < 0.02  # from 8.6
    assert losses[2] == losses[3] == losses[4]


def test_a_grafted_optimizer_keeps_its_direction_at_a_multiple_of_the_length_of_delta() -> None:
    delta = np.array([3.0, 4.0])
    for inner in (Average(), Momentum(momentum=0.9), Adam()):
        server, state, plain = Grafted(inner, times=2.0), Grafted(inner).init(), inner.init()
        for _ in range(3):
            direction, state = server.update(state, delta)
            expected, plain = inner.update(plain, delta)
            assert np.linalg.norm(direction) == pytest.approx(10.0)
            assert direction / 10 == pytest.approx(expected / np.linalg.norm(expected))
    assert not Grafted(Momentum()).update(Momentum().init(), 0 * delta)[0].any()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("local_lr", 0.0),
        ("probe", math.nan),
        ("climb", 0.5),
        ("slack", 0.0),
        ("smoothing", 1.5),
        ("brake", -1.0),
        ("momentum", 1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        Auto(**{setting: value})
