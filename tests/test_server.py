"""Server optimizers: hand-worked vectors, and torch.optim where both define the same thing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper import Adagrad, Adam, Average, Momentum, Yogi
from fedhyper.optimizers import Moments, ServerOptimizer

ALL: list[ServerOptimizer] = [Average(), Momentum(), Adagrad(), Adam(), Yogi()]
DELTAS = np.random.default_rng(6).normal(size=(20, 5)) * np.array([1e-4, 1e-2, 1.0, 10.0, 0.0])


def directions(optimizer: ServerOptimizer, deltas: Any) -> list[Any]:
    """The direction for each delta in turn."""
    state, out = optimizer.init(), []
    for delta in deltas:
        direction, state = optimizer.update(state, delta)
        out.append(direction)
    return out


def test_average() -> None:
    assert directions(Average(), [3.0, -4.0]) == [3.0, -4.0]


def test_momentum() -> None:
    # 1; .5 · 1 + 2; .5 · 2.5 - 1
    assert directions(Momentum(momentum=0.5), [1.0, 2.0, -1.0]) == [1.0, 2.5, 0.25]


def test_adagrad() -> None:
    # v0 = 1. Δ = 3: 3 / (√(1 + 9) + 1).  Δ = -1: -1 / (√(10 + 1) + 1)
    expected = [3 / (math.sqrt(10) + 1), -1 / (math.sqrt(11) + 1)]
    assert directions(Adagrad(tau=1.0), [3.0, -1.0]) == pytest.approx(expected, rel=1e-15)


def test_adam() -> None:
    # v0 = .25. Δ = 2:  m = .5 · 0 + .5 · 2 = 1,  v = .75 · .25 + .25 · 4 = 1.1875
    #           Δ = -4: m = .5 · 1 - .5 · 4 = -1.5, v = .75 · 1.1875 + .25 · 16 = 4.890625
    expected = [1 / (math.sqrt(1.1875) + 0.5), -1.5 / (math.sqrt(4.890625) + 0.5)]
    assert directions(Adam(beta1=0.5, beta2=0.75, tau=0.5), [2.0, -4.0]) == pytest.approx(expected, rel=1e-15)


def test_yogi() -> None:
    # v0 = .25. Δ = 2: Δ² = 4 > v, so v = .25 + .25 · 4 = 1.25, m = 1
    #           Δ = 1: Δ² = 1 < v, so v = 1.25 - .25 · 1 = 1, m = .5 + .5 = 1
    #           Δ = 1: Δ² = v, so v stays 1, m = .5 + .5 = 1
    expected = [1 / (math.sqrt(1.25) + 0.5), 1 / 1.5, 1 / 1.5]
    assert directions(Yogi(beta1=0.5, beta2=0.75, tau=0.5), [2.0, 1.0, 1.0]) == pytest.approx(expected, rel=1e-15)


def test_defaults_are_reddis() -> None:
    assert (Momentum().momentum, Adagrad().tau, Adam().beta1, Adam().beta2, Adam().tau) == (0.9, 1e-3, 0.9, 0.99, 1e-3)
    assert Adam().init() == Yogi().init() == Adagrad().init() == Moments(0.0, 1e-6)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_pure_and_the_same_on_numbers_numpy_and_torch(optimizer: ServerOptimizer) -> None:
    kept = DELTAS.copy()
    arrays = np.array(directions(optimizer, DELTAS))
    assert np.array_equal(kept, DELTAS)
    numbers = [directions(optimizer, column) for column in DELTAS.T.tolist()]
    tensors = torch.stack(directions(optimizer, torch.tensor(DELTAS)))
    assert arrays == pytest.approx(np.array(numbers).T, rel=1e-14)
    assert arrays == pytest.approx(tensors.numpy(), rel=1e-14)
    _, state = optimizer.update(optimizer.init(), DELTAS[0])
    again = [optimizer.update(state, DELTAS[1])[0] for _ in range(2)]
    assert np.array_equal(*again)


def _torch_moves(make: Any, deltas: np.ndarray) -> np.ndarray:
    """What torch's optimizer subtracts at lr 1 when it is fed the deltas as gradients."""
    weights = torch.zeros(deltas.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer, moves = make([weights]), []
    for delta in deltas:
        before = weights.detach().clone()
        weights.grad = torch.tensor(delta)
        optimizer.step()
        moves.append((before - weights.detach()).numpy())
    return np.array(moves)


def test_momentum_equals_torch() -> None:
    moves = _torch_moves(lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), DELTAS)
    assert np.array(directions(Momentum(momentum=0.9), DELTAS)) == pytest.approx(moves, rel=1e-9, abs=1e-13)


def test_adagrad_equals_torch() -> None:
    tau = 0.01
    moves = _torch_moves(lambda p: torch.optim.Adagrad(p, lr=1.0, initial_accumulator_value=tau**2, eps=tau), DELTAS)
    assert np.array(directions(Adagrad(tau=tau), DELTAS)) == pytest.approx(moves, rel=1e-9, abs=1e-13)


def test_adam_equals_torch_up_to_bias_correction() -> None:
    """torch steps by lr · (m / c1) / (√v / √c2 + eps): lr = c1 / √c2 and eps = τ / √c2 undo its correction."""
    beta1, beta2, tau = 0.9, 0.99, 0.01
    weights = torch.zeros(DELTAS.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=1.0, betas=(beta1, beta2))
    start = {"exp_avg": torch.zeros_like(weights), "exp_avg_sq": torch.full_like(weights, tau**2)}  # v starts at τ²
    optimizer.state[weights] = {"step": torch.tensor(0.0), **start}
    ours, state = Adam(beta1=beta1, beta2=beta2, tau=tau), Adam(tau=tau).init()
    for t, delta in enumerate(DELTAS, start=1):
        c1, c2 = 1 - beta1**t, math.sqrt(1 - beta2**t)
        optimizer.param_groups[0].update(lr=c1 / c2, eps=tau / c2)
        before = weights.detach().clone()
        weights.grad = torch.tensor(delta)
        optimizer.step()
        direction, state = ours.update(state, delta)
        assert direction == pytest.approx((before - weights.detach()).numpy(), rel=1e-6, abs=1e-13)
        assert state.mean == pytest.approx(optimizer.state[weights]["exp_avg"].numpy(), rel=1e-12)
        assert state.square == pytest.approx(optimizer.state[weights]["exp_avg_sq"].numpy(), rel=1e-12)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Momentum, {"momentum": 1.0}),
        (Momentum, {"momentum": -0.1}),
        (Momentum, {"momentum": math.nan}),
        (Adagrad, {"tau": 0.0}),
        (Adam, {"tau": 0.0}),
        (Adam, {"beta1": 1.0}),
        (Adam, {"beta2": 1.0}),
        (Yogi, {"beta2": -1.0}),
    ],
)
def test_bad_settings_are_refused(make: Any, settings: dict[str, float]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=rf"^{name} must be in \[.*\), got {value}"):
        make(**settings)


@pytest.mark.parametrize("make", [Adagrad, Adam, Yogi])
def test_a_tau_that_would_hold_every_weight_still_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"^tau must be in \[1e-30, 1e\+30\), got 1e\+30"):
        make(tau=1e30)


def test_the_edges_of_the_settings_are_allowed() -> None:
    assert directions(Momentum(momentum=0.0), [3.0, -4.0]) == [3.0, -4.0]  # without momentum it is the average
    # Adam without memory: m = Δ, v = Δ²
    assert directions(Adam(beta1=0.0, beta2=0.0, tau=1e-30), [3.0, -4.0]) == [1.0, -1.0]


@pytest.mark.parametrize("optimizer", [Average(), Momentum()])
def test_what_has_no_use_for_squares_keeps_none(optimizer: ServerOptimizer) -> None:
    assert optimizer.init() == (0.0, 0.0, 0)
    assert optimizer.update(optimizer.init(), 2.0)[1].square == 0.0
