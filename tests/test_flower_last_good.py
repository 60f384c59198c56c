"""The last good weights are not held where they are the last step undone; everything goes on as if they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedhyper import Auto
from fedhyper.flower import FedHyper, last_good
from fedhyper.loop import LoopState, RoundReport, ServerLoop
from fedhyper.storage import checkpoint
from tests.flower_support import LocalGrid, arrays, initial, quadratic_app


def reports(seed: int, rounds: int = 40) -> list[RoundReport]:
    """Losses that fall, rise and jump, so that weights are good, fair and damaged; and rounds that are all refused."""
    rng, made = np.random.default_rng(seed), []
    for t in range(rounds):
        loss = 5.0 / (t + 1) + (50.0 if rng.random() < 0.15 else float(rng.random()))
        delta = {k: rng.standard_normal(shape).astype(np.float32) / (t + 1) for k, shape in (("a", 7), ("b", (2, 3)))}
        refused = RoundReport(refused=3) if rng.random() < 0.1 else RoundReport()
        made.append(RoundReport(delta, (loss,) * 5) if rng.random() < 0.85 else refused)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_every_state_is_what_it_would_be(seed: int) -> None:
    loop = ServerLoop(Auto(local_lr=0.1, voices=2))
    whole = short = loop.init({"a": np.ones(7, np.float32), "b": np.ones((2, 3), np.float32)})
    folded, actions = 0, set()
    for report in reports(seed):
        whole, expected = loop.update(whole, report)
        after, decision = loop.update(short, report)
        after = last_good.carried(after, short)
        short = last_good.fold(after, short) if decision.action == "step" and decision.global_lr == 1 else after
        folded += last_good.is_folded(short)
        actions.add(decision.action)
        assert decision.action == expected.action
        for a, b in zip(_models(last_good.unfold(short)), _models(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert folded > 10
    assert "step" in actions
    assert len(actions) > 1


@pytest.mark.parametrize("size", [1e4, 1e8, 1e30])
def test_weights_come_back_from_a_step_of_any_length(size: float) -> None:
    loop = ServerLoop(Auto(local_lr=0.1, voices=2))
    state = loop.init({"a": np.ones(7, np.float32), "b": np.full((2, 3), 0.01, np.float32)})
    for long in (0.0, 0.0, 0.0, 0.0, size):
        delta = {"a": np.full(7, 0.1, np.float32), "b": np.full((2, 3), 0.001 + long, np.float32)}
        was, (after, decision) = state.now, loop.update(state, RoundReport(delta, (1.0,) * 5))
        assert decision.action == "step"
        state = last_good.fold(last_good.carried(after, state), state)
    for key, array in was.weights.items():
        np.testing.assert_allclose(last_good.unfold(state).good.weights[key], array, rtol=2e-3)


def _models(state: LoopState) -> list[Any]:
    return [model.weights[key] for model in (state.now, state.good, state.mean) for key in ("a", "b")]


def test_a_checkpoint_of_auto_holds_three_models_and_not_four(tmp_path: Path) -> None:
    start = arrays(w=np.zeros(5000, np.float32))
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), seed=0, checkpoint=tmp_path / "c")
    strategy.start(LocalGrid(quadratic_app(), 10), start, num_rounds=6)
    tensors, _ = checkpoint.load(tmp_path / "c")
    assert sum(tensor.size for tensor in tensors.values()) == 3 * 5000  # sent next, momentum, mean
    assert isinstance(strategy.state.good.weights, dict)  # whoever asks is shown them


def test_whoever_runs_the_rounds_may_send_other_weights_and_the_last_good_ones_stay() -> None:
    strategy, grid = FedHyper(FedAvg(fraction_evaluate=0.0), seed=0), LocalGrid(quadratic_app(), 10)
    strategy.start(grid, initial(), num_rounds=5)
    good = {name: array.copy() for name, array in strategy.state.good.weights.items()}
    other = arrays(**{name: array.numpy() * 3 for name, array in initial().items()})
    strategy.configure_train(6, other, grid.sent[-1].content["config"], grid)
    for name, array in strategy.state.good.weights.items():
        np.testing.assert_array_equal(array, good[name])
