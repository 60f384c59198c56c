"""Two numbers in place of two long vectors: every rule decides the same; and the simulator decides the same, too."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM

from fedhyper import Decay, FedExP, FedHyperG, FedHyperSL, Pair
from fedhyper.arrays import inner
from fedhyper.automatic.auto import Auto
from fedhyper.flower import FedHyper, gram
from fedhyper.flower.records import sums
from fedhyper.flower.records.fair import weigh
from fedhyper.flower.records.replies import NodeReply
from fedhyper.guard import NORM_CAP, fair_weights, judging_weights, not_against
from fedhyper.loop import RoundReport, ServerLoop
from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import load_task
from fedhyper.sim.methods import make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation
from tests.flower_support import LocalGrid, NoStart, initial, quadratic_app

PLANS: dict[str, Any] = {
    "g": Pair(global_rule=FedHyperG(hyper_lr=0.01)),
    "sl": Pair(local_rule=FedHyperSL(hyper_lr=1e-4)),
    "g+sl": Pair(global_rule=FedHyperG(hyper_lr=0.01), local_rule=FedHyperSL(hyper_lr=1e-4)),
    "cosine": Pair(global_rule=FedHyperG(hypergrad="cosine", apply="log", hyper_lr=0.3)),
    "fedexp": Pair(global_rule=FedExP()),
    "decay": Pair(global_rule=Decay(), local_rule=FedHyperSL(hypergrad="cosine", apply="relative")),
    "auto": Auto(local_lr=0.01, voices=1),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_of_ours_decides_in_coordinates_as_on_the_vectors_themselves(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(3)
    assert plan.products_only
    loops = [ServerLoop(plan), ServerLoop(gram.InCoordinates(plan))]
    pieces = {"a": (10_000,), "b": (100, 100), "c": ()}
    states = [loop.init({key: np.zeros(shape, np.float32) for key, shape in pieces.items()}) for loop in loops]
    drift = {key: rng.standard_normal(shape) for key, shape in pieces.items()}
    for t in range(12):
        delta = {k: np.asarray(0.01 * (d / 2 + rng.standard_normal(d.shape)), np.float32) for k, d in drift.items()}
        loss = 50.0 if t == 8 else 2.0 / (t + 1)  # auto retreats once
        report = RoundReport(delta, (loss,), 2.0 * float(inner(delta, delta)))
        done = [loop.update(state, report) for loop, state in zip(loops, states, strict=True)]
        states = [state for state, _ in done]
        assert (done[0][1].action == "rollback") == (name == "auto" and t == 8)
        whole, short = (decision for _, decision in done)
        assert short.action == whole.action
        assert short.global_lr == pytest.approx(whole.global_lr, rel=1e-12)
        assert short.local_lr == pytest.approx(whole.local_lr, rel=1e-9)
        assert short.hypergrad == pytest.approx(whole.hypergrad, rel=1e-6, abs=1e-15, nan_ok=True)


def test_products_are_exact_enough_and_zero_vectors_are_no_trouble() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 8191, 8192, 8193, 100_000):
        a, b = rng.standard_normal((2, size)).astype(np.float32)
        across, square, other = gram.products({"x": a}, {"x": b})
        assert across == pytest.approx(math.fsum(a.astype(float) * b.astype(float)), rel=1e-10, abs=1e-9)
        assert square == pytest.approx(math.fsum(a.astype(float) ** 2), rel=1e-12)
        assert gram.products({"x": b}, 0.0) == (0.0, other, 0.0)
        assert sums.sq_distance({"x": a}, {"x": b}, ["x"]) == pytest.approx(
            float(((a - b).astype(float) ** 2).sum()), rel=1e-6
        )
        for scale in (1.0, 1e-25, 1e25):
            far = [{"x": np.float32(scale) * b}, {"x": np.float32(scale) * a}]
            near = {"x": np.float32(scale) * a}
            exact = sums.sq_distance(near, far[0], ["x"])
            assert sums.sq_distances(near, far, ["x"]) == pytest.approx([exact, 0.0], rel=1e-5)
    zero = {"x": np.zeros(10, np.float32)}
    loop = ServerLoop(gram.InCoordinates(Auto()))
    state = loop.init(zero)
    for _ in range(3):
        state, _ = loop.update(state, RoundReport(zero, (1.0,), 0.0))
    assert math.isfinite(state.local_lr)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_mean_and_what_it_shares_with_each_reply_in_one_look(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 11_111), "none": (0,), "one": ()}
    before = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    replies = [{k: (v + 0.1 * rng.normal(size=v.shape)).astype(dtype) for k, v in before.items()} for _ in range(4)]
    weights = [1, 2.5, 3, 0.01]
    delta, along = sums.moved(replies, weights, list(shapes), before)
    for name, array in sums.mean(replies, weights, list(shapes), before).items():
        assert np.array_equal(array, delta[name])
        assert array.shape == shapes[name]
    rows = np.stack([np.concatenate([np.ravel(before[k].astype(float) - r[k]) for k in shapes]) for r in replies])
    rough = {np.float16: 5e-2, np.float32: 1e-5, np.float64: 1e-12}[dtype]  # of the length of the vectors
    exact, scale = rows @ (np.array(weights) @ rows), float(np.linalg.norm(rows[0]) ** 2)
    np.testing.assert_allclose(along, exact, atol=rough * scale)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_every_product_of_two_replies_in_one_look(dtype: Any, scale: float) -> None:
    if dtype == np.float16:
        scale = min(max(scale, 1e-2), 1e2)
    rng = np.random.default_rng(0)
    shapes = {"long": (3, 22_223), "exact": (1024,), "none": (0,), "one": ()}
    before = {name: (scale * rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
    replies = [{k: (v + scale * rng.normal(size=v.shape)).astype(dtype) for k, v in before.items()} for _ in range(4)]
    replies.append(before)  # this one did not move
    found = np.array(sums.products(before, replies, list(shapes)))
    rows = np.stack([np.concatenate([np.ravel(before[k].astype(float) - r[k]) for k in shapes]) for r in replies])
    rough = {np.float16: 1e-3, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    np.testing.assert_allclose(found, rows @ rows.T, rtol=rough, atol=rough * float((rows[0] ** 2).sum()))
    replies[2] = {**before, "one": np.array(math.nan, dtype)}
    spoilt, honest = np.array(sums.products(before, replies, list(shapes))), [0, 1, 3, 4]
    assert np.isnan(spoilt[2, 2])
    np.testing.assert_array_equal(spoilt[np.ix_(honest, honest)], found[np.ix_(honest, honest)])


def test_products_have_the_same_bits_for_any_number_of_threads() -> None:
    code = (
        "import numpy as np; from fedhyper.flower.records import sums; rng = np.random.default_rng(0);"
        "rows = [{'w': rng.normal(size=70_001).astype(np.float32)} for _ in range(sums.MOST + 1)];"
        "print(sums.products(rows[0], rows[1:], ['w']))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(found) == 1


@pytest.mark.parametrize("count", [sums.MOST, sums.MOST + 1])  # each multiplied with each, and with the sum alone
def test_few_replies_and_many_are_judged_alike(count: int) -> None:
    rng = np.random.default_rng(1)
    updates = rng.normal(1.0, 0.1, (count, 3000)).astype(np.float32)
    updates[-5:] *= -1  # the heaviest
    nodes = [NodeReply(None, i, 1.0 + i, "", {"w": -d}, {}, float(d.astype(float) @ d)) for i, d in enumerate(updates)]  # type: ignore[arg-type]
    found = [reply.weight for reply in weigh(nodes, NORM_CAP, {"w": np.zeros(3000, np.float32)}, ["w"])[0]]
    fair = fair_weights([1.0 + i for i in range(count)], [float(np.linalg.norm(d)) for d in updates], NORM_CAP)
    wide = updates.astype(float)
    judging = judging_weights(fair, list(np.linalg.norm(wide, axis=1)))
    exact = not_against(fair, list((wide**2).sum(1)), list(wide @ (np.array(judging) @ wide)))
    assert found == pytest.approx(exact, rel=1e-4)
    assert found[-1] < 0.97 * fair[-1]


@pytest.mark.parametrize("keys", [("a", "b", "c"), ("c", "a", "b")])
def test_products_do_not_depend_on_the_order_of_the_arrays(keys: tuple[str, ...]) -> None:
    """A checkpoint gives arrays back by name, not by place."""
    rng = np.random.default_rng(1)
    a, b = (
        {key: rng.standard_normal(20_000) * scale for key, scale in zip("abc", (1, 1e8, 1e-8), strict=True)}
        for _ in "ab"
    )
    assert gram.products({key: a[key] for key in keys}, b) == gram.products(a, b)


@dataclass(frozen=True)
class Mine(Pair):
    """A plan of somebody else's, which looks at the vectors themselves."""

    seen: list[Any] = field(default_factory=list)
    products_only = False

    def update(self, state: Any, seen: Any) -> Any:
        self.seen.append((seen.delta, {key: float(piece.sum()) for key, piece in seen.delta.items()}))
        return super().update(state, seen)


def test_another_plan_gets_the_arrays_by_name_and_may_keep_them() -> None:
    plan = Mine()
    FedHyper(FedAvg(), plan, seed=0).start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=4)
    trained = {"conv.weight": (4, 3), "bn.weight": (4,), "fc.weight": (2, 4)}
    assert [{key: piece.shape for key, piece in delta.items()} for delta, _ in plan.seen] == [trained] * 4
    assert all(float(delta[key].sum()) == total for delta, sums in plan.seen for key, total in sums.items())


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
    chosen = make_method(method, local_lr=0.05, global_lr=1.0)
    if method == "fedhyper":  # the simulator's clients try several rates in one round, Flower's one each
        chosen = replace(chosen, plan=NoStart(local_lr=0.05))
    sim = Simulation(
        task=task,
        partition=make_partition("dirichlet", task.train_y.numpy(), 10, seed=0, min_size=2),
        model=make_model("mlp", task.shape, task.classes, seed=0, hidden=16),
        method=chosen,
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
        row = strategy.history[-1]
        assert row.keys() == record.keys()
        assert row["rollback"] == record["rollback"]
        for key in ("global_lr", "local_lr", "update_norm", "hypergrad"):
            ours, theirs = row[key], record[key]
            if ours is not None:
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        newest = sim.state()[0]["state/0/1/0"]  # what it sends next
        np.testing.assert_allclose(result["w"].numpy(), newest.numpy(), rtol=1e-4, atol=2e-6)
    sim.close()
