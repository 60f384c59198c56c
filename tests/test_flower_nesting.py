"""Strategies inside strategies: a start of their own, their attributes, differential privacy inside and outside."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Strategy,
)

from fedhyper import Auto
from fedhyper.errors import UserError
from fedhyper.flower import FedHyper
from tests.flower_apps.suite import PYTORCH, CustomFedAvg, evaluate_with, run
from tests.flower_support import LocalGrid, arrays, initial, numbers, quadratic_app, same_bits


class Logged(Strategy):
    """A wrapper of an app's own, around any strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(self, *args: Any) -> Any:
        return self.strategy.configure_train(*args)

    def aggregate_train(self, *args: Any) -> Any:
        return self.strategy.aggregate_train(*args)

    def configure_evaluate(self, *args: Any) -> Any:
        return self.strategy.configure_evaluate(*args)

    def aggregate_evaluate(self, *args: Any) -> Any:
        return self.strategy.aggregate_evaluate(*args)

    def summary(self) -> None:
        self.strategy.summary()


def start(
    strategy: FedHyper, app: ClientApp | None = None, rounds: int = 5, nodes: int = 6, **grid: Any
) -> ArrayRecord:
    result = strategy.start(LocalGrid(app or quadratic_app(), nodes, **grid), initial(), num_rounds=rounds)
    assert result.arrays is not None
    return result.arrays


@pytest.mark.parametrize("inner", [FedAdam, lambda: FedAvgM(server_momentum=0.9), FedAvg])
@pytest.mark.parametrize("schedule", ["auto", "g"])
def test_a_wrapper_of_an_apps_own_changes_nothing(schedule: str, inner: Any) -> None:
    direct, through = (FedHyper(make(), schedule, seed=0) for make in (inner, lambda: Logged(inner())))
    a, b = numbers(start(direct)), numbers(start(through))
    assert direct.state.local_lr == pytest.approx(through.state.local_lr, rel=1e-5)
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-5, atol=1e-6)


def test_the_weight_of_a_nested_strategy_is_seen() -> None:
    def renamed(reply: Message) -> Message:
        reply.content["metrics"]["n"] = reply.content["metrics"].pop("num-examples")
        return reply

    for schedule in ("auto", "g"):
        strategy = FedHyper(Logged(FedAvg(weighted_by_key="n", fraction_evaluate=0.0)), schedule, seed=0)
        result = start(strategy, spoil=dict.fromkeys(range(6), renamed))
        direct = start(FedHyper(FedAvg(fraction_evaluate=0.0), schedule, seed=0))
        for name, array in numbers(
            direct
        ).items():  # the mean of a strategy that is nested is its own: a rounding apart
            np.testing.assert_allclose(numbers(result)[name], array, rtol=1e-5, atol=1e-6)


# --- advanced-pytorch ------------------------------------------------------------------------------------------------


def test_a_start_of_its_own_runs_the_rounds_and_its_files_and_log_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, seen = CustomFedAvg(fraction_evaluate=0.0), []
    strategy = FedHyper(inner, seed=0)
    strategy.set_save_path(tmp_path)  # what FedHyper has not is the inner strategy's
    strategy.on_round = seen.append
    grid = LocalGrid(PYTORCH.client(), 10)
    with caplog.at_level(logging.WARNING, "flwr"):
        accuracy, result = run(PYTORCH, strategy, grid, num_rounds=12, evaluate_fn=evaluate_with(PYTORCH))
    assert accuracy > 0.9
    assert [row.get("round", next(iter(row))) for row in inner.logged] == ["init", *range(1, 13), "finish"]
    assert "fedhyper.local-lr" in inner.logged[3]
    assert [row["round"] for row in strategy.history] == list(range(1, 13))
    # the file has the weights that were evaluated, and those are the ones that come back
    import torch

    saved = torch.load(tmp_path / "best.pt")
    assert PYTORCH.accuracy(ArrayRecord(saved)) == inner.best == max(row["accuracy"] for row in strategy.history)
    assert strategy.history[-1]["accuracy"] == accuracy
    assert PYTORCH.accuracy(result.arrays) == accuracy
    # its own schedule, which halves the rate in rounds 5 and 10, does not make the log a fiction
    configs = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    sent = {int(config["server-round"]): float(config["lr"]) for config in configs}
    assert [sent[t] for t in (5, 10)] == [pytest.approx(strategy_lr) for strategy_lr in _rates(inner, (5, 10))]
    assert sum("sets lr itself" in record.message for record in caplog.records) == 1
    # each round was told once, evaluation and all
    assert [row["round"] for row in seen] == list(range(1, 13))
    assert all(row["accuracy"] is not None for row in seen)
    # and the object is itself again
    assert inner.configure_train.__func__ is CustomFedAvg.configure_train


def _rates(inner: CustomFedAvg, rounds: tuple[int, ...]) -> list[float]:
    return [row["fedhyper.local-lr"] for t in rounds for row in inner.logged if row.get("round") == t]


class Around(FedAvg):
    """The other form: something before and after Flower's own loop."""

    def start(self, *args: Any, label: str = "", **named: Any) -> Any:
        self.label = label
        result = super().start(*args, **named)
        self.finished = True
        return result


def test_super_start_works_and_further_arguments_arrive() -> None:
    inner = Around(fraction_evaluate=0.0)
    strategy = FedHyper(inner, seed=0)
    grid = LocalGrid(quadratic_app(), 6)
    result = strategy.start(grid, initial(), num_rounds=5, label="mine")
    assert (inner.label, inner.finished) == ("mine", True)
    assert same_bits(result.arrays, start(FedHyper(FedAvg(fraction_evaluate=0.0), seed=0)))


def test_on_round_is_told_what_a_run_that_stops_had_done() -> None:
    seen: list[Any] = []

    def fails(reply: Message) -> Message:
        return Message(Error(2, "no"), reply_to=reply)

    strategy = FedHyper(FedAvg(), patience=2, on_round=seen.append)
    with pytest.raises(Exception, match="2 rounds in a row"):
        start(strategy, rounds=5, spoil=dict.fromkeys(range(6), fails))
    assert [row["round"] for row in seen] == [1, 2]


# --- differential privacy --------------------------------------------------------------------------------------------


def noisy(strategy: Strategy, noise: float = 0.5, clip: float = 1.0, clients: int = 6) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(strategy, noise, clip, clients)


@pytest.mark.parametrize("schedule", ["auto", "g", "sl", "constant"])
def test_noise_outside_is_refused_before_anything_is_sent(schedule: str) -> None:
    grid = LocalGrid(quadratic_app(), 6)
    for outside in (noisy, lambda s: DifferentialPrivacyServerSideAdaptiveClipping(s, 0.5, 6)):
        with pytest.raises(UserError, match="put FedHyper outside"):
            outside(FedHyper(FedAvg(), schedule)).start(grid, initial(), num_rounds=1)
    assert grid.sent == []


def deviation(strategy: FedHyper, app: ClientApp, nodes: int, spoil: Any = None) -> float:
    """How far the weights after one round are from where they were, where clients do not move at all: the noise."""
    np.random.seed(0)
    grid = LocalGrid(app, nodes, spoil=spoil)
    begin = arrays(w=np.zeros(20_000, np.float32))
    result = strategy.start(grid, begin, num_rounds=1)
    return float(numbers(result.arrays)["w"].std())


def still_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = {"num-examples": 1, "train_loss": 1.0 - float(message.content["config"]["lr"])}
        w = numbers(message.content["arrays"])["w"] + np.float32(1e-9)  # Flower's clipping divides by the length
        content = {"arrays": arrays(w=w), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return app


@pytest.mark.parametrize("failing", [0, 3])
def test_the_noise_is_right_for_the_replies_that_are_in_the_mean(failing: int) -> None:
    """z · C / n with n the replies used: fewer than asked when nodes fail, or try rates out that were no good."""

    def fails(reply: Message) -> Message:
        return Message(Error(2, "no"), reply_to=reply)

    for schedule in ("auto", "g"):
        strategy = FedHyper(noisy(FedAvg(fraction_evaluate=0.0)), schedule, seed=0)
        found = deviation(strategy, still_app(), 6, dict.fromkeys(range(failing), fails))
        used = strategy.history[0]["clients_used"]
        assert used == 6 - failing if schedule == "g" else 0 < used <= 6 - failing
        assert found == pytest.approx(0.5 * 1.0 / used, rel=0.05)


@pytest.mark.parametrize("inner", [lambda: FedAvgM(server_momentum=0.9), lambda: FedAdam(eta=0.01)])
@pytest.mark.parametrize("schedule", ["auto", "g"])
def test_a_strategy_that_steps_inside_the_noise_does_not_diverge(schedule: str, inner: Any) -> None:
    """Seen as what it is: no second momentum on top of its own, and no unit for Adam's steps."""
    np.random.seed(0)
    result = start(FedHyper(noisy(inner(), 0.01, 5.0), schedule, seed=0, local_lr=0.05), rounds=25)
    distances = [float(np.abs(numbers(record)["fc.weight"] - 2).max()) for record in (initial(), result)]  # centres: 2
    assert distances[1] < distances[0]


def test_one_failed_node_does_not_cost_the_round_inside_noise() -> None:
    def fails(reply: Message) -> Message:
        return Message(Error(2, "no"), reply_to=reply)

    strategy = FedHyper(noisy(FedAvg(), 0.01, 5.0), "g", seed=0)
    result = start(strategy, rounds=3, spoil={2: fails})
    assert not same_bits(result, initial())
    assert [row["clients_used"] for row in strategy.history] == [5, 5, 5]


def test_an_adaptive_clipping_norm_survives_a_resume(tmp_path: Path) -> None:
    def make() -> FedHyper:
        inner = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 1e-9, 6)
        return FedHyper(inner, "g", seed=0, checkpoint=tmp_path / "c")

    first = make()
    start(first, rounds=4)
    again = make()
    again.start(LocalGrid(quadratic_app(), 6), initial(), num_rounds=4, resume=True)
    assert again.strategy.clipping_norm == first.strategy.clipping_norm != 0.1


@pytest.mark.parametrize("schedule", ["cl", "g+cl", "auto", "g"])
@pytest.mark.parametrize("kind", ["local", "central"])
def test_flowers_own_privacy_mods_bear_what_is_sent(kind: str, schedule: str) -> None:
    import torch

    from fedhyper.flower import client_optimizer
    from tests.flower_apps import task

    guard = LocalDpMod(5.0, 1e-6, 10.0, 1e-5) if kind == "local" else fixedclipping_mod
    app = ClientApp(mods=[guard])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, data = task.mlp(), task.load(context)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = client_optimizer(net, message, local_steps=9)
        loss = task.train(net, data, optimizer)
        assert isinstance(optimizer, torch.optim.Optimizer)
        return task.answer(message, ArrayRecord(net.state_dict()), train_loss=loss, **{"num-examples": len(data[0])})

    inner: Strategy = FedAvg(fraction_evaluate=0.0)
    if kind == "central":
        inner = DifferentialPrivacyClientSideFixedClipping(inner, 1e-6, 5.0, 10)
    strategy = FedHyper(inner, schedule, seed=0, local_lr=0.1)
    accuracy, _ = run(PYTORCH, strategy, LocalGrid(app, 10), num_rounds=5)
    assert accuracy > 0.3
    assert all(row["clients_rejected"] == 0 for row in strategy.history)
    assert [row["clients_used"] for row in strategy.history[1:]] == [10] * 4


def test_the_schedule_reads_the_released_aggregate_alone_under_g() -> None:
    """The same noise, other clients' losses: g decides the same; auto, which reads them, need not."""
    assert "losses" in Auto().requires
    strategy = FedHyper(noisy(FedAdam(), 0.5, 1.0), "g", seed=0)
    np.random.seed(0)
    start(strategy, rounds=3)
    seen = strategy.history[1]["update_norm"]
    assert seen is not None
    assert seen > 0.5 / 6  # the noise is in it
