"""Two numbers in place of two long vectors: every rule decides the same; and the simulator decides the same, too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM

from fedhyper import Decay, FedExP, FedHyperG, FedHyperSL, Pair
from fedhyper.arrays import inner
from fedhyper.automatic.auto import Auto
from fedhyper.flower import FedHyper, gram
from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import load_task
from fedhyper.sim.methods import make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation
from tests.flower_support import LocalGrid, quadratic_app

PLANS: dict[str, Any] = {
    "g": Pair(global_rule=FedHyperG(hyper_lr=0.01)),
    "sl": Pair(local_rule=FedHyperSL(hyper_lr=1e-4)),
    "g+sl": Pair(global_rule=FedHyperG(hyper_lr=0.01), local_rule=FedHyperSL(hyper_lr=1e-4)),
    "cosine": Pair(global_rule=FedHyperG(hypergrad="cosine", apply="log", hyper_lr=0.3)),
    "fedexp": Pair(global_rule=FedExP()),
    "decay": Pair(global_rule=Decay(), local_rule=FedHyperSL(hypergrad="cosine", apply="relative")),
    "auto": Auto(local_lr=0.01),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_known_plan_decides_as_on_the_vectors_themselves(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(3)
    assert gram.knows(plan)
    whole = short = plan.init()
    before, drift = None, rng.standard_normal(20_001)
    for t in range(12):
        delta = (0.5 * drift + rng.standard_normal(20_001)).astype(np.float32) * np.float32(0.01)
        loss = 50.0 if t == 8 else 2.0 / (t + 1)  # auto retreats once
        sq_norm = 2.0 * float(inner(delta, delta))
        whole = plan.update(whole, delta, loss=loss, sq_norm=sq_norm)
        short = gram.update(plan, short, delta, before, loss=loss, sq_norm=sq_norm)
        if short.momentum and before is not None:
            gram.add(delta, short.momentum, before)
        before = None if short.rollback else delta
        assert short.rollback == whole.rollback
        assert short.global_lr == pytest.approx(whole.global_lr, rel=1e-12)
        assert short.local_lr == pytest.approx(whole.local_lr, rel=1e-7)  # auto's step is in float32
        assert short.hypergrad == pytest.approx(whole.hypergrad, rel=1e-6, abs=1e-15, nan_ok=True)


def test_products_are_exact_enough_and_zero_vectors_are_no_trouble() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 8191, 8192, 8193, 100_000):
        a, b = rng.standard_normal((2, size)).astype(np.float32)
        across, square = gram.products(a, b)
        assert across == pytest.approx(math.fsum(a.astype(float) * b.astype(float)), rel=1e-10, abs=1e-9)
        assert square == pytest.approx(math.fsum(a.astype(float) ** 2), rel=1e-12)
        assert gram.products(a, None)[1] == square  # a resumed run has no |Δ_t-1| at hand: it must get the same bits
        assert gram.sq_distance({"x": a}, {"x": b}, ["x"]) == pytest.approx(
            float(((a - b).astype(float) ** 2).sum()), rel=1e-6
        )
        for scale in (1.0, 1e-25, 1e25):
            far = [{"x": np.float32(scale) * b}, {"x": np.float32(scale) * a}]
            near = {"x": np.float32(scale) * a}
            exact = gram.sq_distance(near, far[0], ["x"])
            assert gram.sq_distances(near, far, ["x"]) == pytest.approx([exact, 0.0], rel=1e-5)
    zero = np.zeros(10, np.float32)
    plan = Auto()
    state = gram.update(plan, plan.init(), zero, None, loss=1.0, sq_norm=0.0)
    state = gram.update(plan, state, zero, zero, loss=1.0, sq_norm=0.0)
    assert math.isfinite(state.local_lr)


class Mine:
    """A plan of somebody else's, which looks at the vector itself."""

    requires = frozenset(("delta",))

    def __init__(self) -> None:
        self.shapes: list[Any] = []
        self.kept: list[Any] = []

    def init(self) -> Any:
        return Pair().init()

    def update(self, state: Any, delta: Any, *, loss: float = 0.0, sq_norm: float = 0.0) -> Any:
        self.shapes.append(delta.shape)
        self.kept.append((delta, float(delta[0])))
        return state

    def lost(self, state: Any) -> Any:
        return state


def test_an_unknown_plan_gets_the_whole_vector_and_may_keep_it() -> None:
    plan = Mine()
    assert not gram.knows(plan)
    from tests.flower_support import initial

    FedHyper(FedAvg(), plan, seed=0).start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=4)
    assert plan.shapes == [(4 * 3 + 4 + 2 * 4,)] * 4
    assert all(float(delta[0]) == first for delta, first in plan.kept)


class Recording:
    """A simulator's engine that keeps what clients were sent and what they answered."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.rounds = engine, []

    def train(self, tasks: Any, sent: Any) -> Any:
        replies = list(self.engine.train(tasks, sent))
        self.rounds.append((sent, replies))
        return iter(replies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.mark.parametrize("method", ["fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-g+sl", "fedexp", "fedavgm"])
def test_same_replies_same_numbers_as_the_simulator(method: str) -> None:
    """Every reply of a simulated run, shown to the strategy: the same two rates and the same weights every round."""
    task = load_task("digits")
    sim = Simulation(
        task=task,
        partition=make_partition("dirichlet", task.train_y.numpy(), 10, seed=0, min_size=2),
        model=make_model("mlp", task.shape, task.classes, seed=0, hidden=16),
        method=make_method(method, local_lr=0.05, global_lr=1.0),
        clients_per_round=4,
        local_epochs=1,
        batch_size=32,
        seed=0,
        engine="sequential",
    )
    sim.engine = recording = Recording(sim.engine)
    strategy = FedHyper(FedAvgM(server_momentum=0.9) if method == "fedavgm" else FedAvg(), sim.method.plan)
    for t in range(1, 7):
        record = sim.run_round(evaluate=False)
        sent, replies = recording.rounds[-1]
        arrays = ArrayRecord({"w": Array(sent.weights.numpy())})
        messages = []
        for reply in replies:
            metrics = {"num-examples": int(reply.examples), "fedhyper.loss": reply.first_loss}
            content = {
                "arrays": ArrayRecord({"w": Array((sent.weights - reply.delta).numpy())}),
                "metrics": MetricRecord(metrics),
            }
            messages.append(Message(RecordDict(content), reply_to=Message(RecordDict(), reply.client + 2, "train")))
        grid = LocalGrid(quadratic_app(), 10)
        grid.contexts = {reply.client + 2: grid.contexts.popitem()[1] for reply in replies}
        config = ConfigRecord()
        [first, *_] = strategy.configure_train(t, arrays, config, grid)
        assert first.content["config"]["local-lr"] == pytest.approx(sent.local_lr, rel=1e-6)
        result, _ = strategy.aggregate_train(t, messages)
        assert result is not None
        assert strategy.state.global_lr == pytest.approx(record["global_lr"], rel=1e-5)
        assert strategy.state.rollback == record["rollback"]
        np.testing.assert_allclose(result["w"].numpy(), sim._state.weights.numpy(), rtol=1e-4, atol=2e-6)
    sim.close()
    assert torch.isfinite(sim._state.weights).all()
