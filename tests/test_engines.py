"""Fast twin = slow twin, for every method, ragged clients and buffers included; and the same bits for any workers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper.sim.data.partition import Partition
from fedhyper.sim.engines.base import ClientTask, Sent
from fedhyper.sim.engines.threads import ThreadEngine
from fedhyper.sim.local.step import Start, make_optimizer, make_step
from fedhyper.sim.methods import Local
from fedhyper.sim.registry import METHODS
from tests.sim_support import batchnorm_net, make_simulation, run

ROUNDS = 3
ALL = [*METHODS, "fedhyper-g+momentum", "fedhyper-g+cl+adam"]
# Adam-like servers have directions of unit size: a rate of 1 would throw the model away and rounding with it.
GLOBAL_LR = {"fedadam": 0.01, "fedadagrad": 0.01, "fedyogi": 0.01, "fedhyper-g+cl+adam": 0.01}
OPTIMIZERS = {
    "momentum": (Local(kind="momentum"), 0.01),
    "nesterov": (Local(kind="nesterov", weight_decay=0.01), 0.01),
    "adam": (Local(kind="adam"), 0.003),
    "adam, L2 and clipped": (Local(kind="adam", weight_decay=0.1, clip_norm=0.5), 0.003),
    "adamw": (Local(kind="adamw", weight_decay=0.1), 0.003),
    "sgd, L2 and clipped": (Local(weight_decay=0.1, clip_norm=0.5), 0.05),
}


def rates(method: str) -> dict[str, float]:
    return {"global_lr": GLOBAL_LR.get(method, 1.0), "local_lr": 0.05}


def assert_alike(one: list[dict], other: list[dict], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, float):
                assert value == pytest.approx(b[key], rel=tolerance, abs=tolerance), key
            else:
                assert value == b[key], key


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("method", ALL)
def test_fast_equals_slow(method: str, model: str) -> None:
    assert_twins(method, model=model, **rates(method))


@pytest.mark.parametrize("model", ["logistic", "cnn"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("method", ["fedprox", "fedhyper-g+sl"])
def test_fast_equals_slow_with_any_client_optimizer(method: str, name: str, model: str) -> None:
    local, lr = OPTIMIZERS[name]
    assert_twins(method, model=model, local=local, local_lr=lr, norm_cap=0.0)


def assert_twins(method: str, **settings: Any) -> None:
    slow = make_simulation(method, engine="sequential", **settings)
    fast = make_simulation(method, engine="fast", workers=2, **settings)
    assert_alike(run(slow, ROUNDS), run(fast, ROUNDS), tolerance=2e-3)
    difference = max(
        float((a - b).abs().max())
        for a, b in zip(slow.named_weights().values(), fast.named_weights().values(), strict=True)
    )
    assert difference < 2e-4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_stack_of_ragged_clients_steps_as_torch_does(name: str) -> None:
    # float64, so that it is the equations that are compared: three clients, the last of which stops half-way
    local, lr = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    grads = [torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in (3, 3, 3, 2, 2, 2)]
    start, expected = Start(lr, 6, 6), []
    for row, initial in enumerate(weights.clone()):
        parameters = [torch.nn.Parameter(part.clone()) for part in initial.split([4, 3])]
        optimizer = make_optimizer(local, parameters, start)
        for grad in (g[row] for g in grads if row < len(g)):
            for parameter, part in zip(parameters, grad.split([4, 3]), strict=True):
                parameter.grad = part.clone()
            if local.clip_norm:
                torch.nn.utils.clip_grad_norm_(parameters, local.clip_norm)
            optimizer.step()
        assert type(optimizer).__module__.startswith("torch.optim")
        expected.append(torch.cat([p.detach() for p in parameters]))
    step = make_step(local, weights, start)
    for grad in grads:
        step.step(grad.clone(), None)
    torch.testing.assert_close(weights, torch.stack(expected), rtol=1e-12, atol=1e-14)


def test_buffers_are_averaged_and_not_stepped() -> None:
    # α = 0.5 halves the step of the weights; the statistics must still be the clients' mean
    runs = {}
    for engine in ("sequential", "fast"):
        for rate in (0.5, 1.0):
            simulation = make_simulation("fedavg", model=batchnorm_net(), engine=engine, global_lr=rate)
            run(simulation, 1)
            runs[engine, rate] = simulation.named_weights()
    for engine in ("sequential", "fast"):
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(runs[engine, 0.5][name], runs[engine, 1.0][name])
        assert not torch.equal(runs[engine, 0.5]["0.weight"], runs[engine, 1.0]["0.weight"])
    tracked = runs["fast", 1.0]["1.num_batches_tracked"]
    assert tracked.dtype == torch.int64
    assert tracked > 0
    for name, value in runs["fast", 1.0].items():
        assert torch.allclose(value, runs["sequential", 1.0][name], atol=1e-5), name


@pytest.mark.parametrize(
    ("model", "method", "optimizer"),
    [
        ("cnn", "fedhyper-g+cl", "sgd"),
        ("mlp", "fedhyper-g+cl", "sgd"),
        ("mlp", "fedexp", "sgd"),
        ("cnn", "fedavg", "adam, L2 and clipped"),
        ("mlp", "fedavg", "adam, L2 and clipped"),
    ],
)
def test_same_bits_for_any_workers_and_threads(model: str, method: str, optimizer: str) -> None:
    local = None if optimizer == "sgd" else OPTIMIZERS[optimizer][0]
    digests, records = set(), []
    threads = torch.get_num_threads()
    try:
        for workers, torch_threads in [(1, 1), (2, 1), (4, 2), (3, 2)]:
            torch.set_num_threads(torch_threads)
            simulation = make_simulation(
                method, model=model, workers=workers, clients=40, clients_per_round=36, local=local
            )
            records.append(run(simulation, 2))
            digests.add(simulation.weights_sha256())
            assert torch.get_num_threads() == torch_threads, "the engine gives the threads back"
    finally:
        torch.set_num_threads(threads)
    assert len(digests) == 1
    assert all(record == records[0] for record in records)


def test_clients_that_nobody_waits_for_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ctrl-C: Python ends only when the threads have, and what was queued would still be trained
    trained = []

    def slow(self: ThreadEngine, task: ClientTask, sent: Sent) -> int:
        trained.append(task.client)
        time.sleep(0.2)
        return task.client

    monkeypatch.setattr(ThreadEngine, "_train_one", slow)
    simulation = make_simulation(model="cnn", engine="threads", workers=1, clients_per_round=12)
    replies = iter(simulation.engine.train(simulation.cohorts.tasks(0), simulation._sent(simulation._state)))
    next(replies)
    replies.close()  # type: ignore[attr-defined]
    simulation.close()
    assert len(trained) <= 2  # the first, and the one that had begun


def test_bfloat16_trains() -> None:
    records = run(make_simulation("fedavg", model="cnn", dtype=torch.bfloat16, clients_per_round=8), 12)
    assert records[-1]["train_loss"] < 0.7 * records[0]["train_loss"]


def test_client_accuracy_agrees_between_engines() -> None:
    found = []
    for engine in ("sequential", "fast"):
        for model in ("mlp", "cnn"):
            simulation = make_simulation(model=model, engine=engine)
            simulation.run_round()
            found.append((model, simulation.client_accuracy()))
            simulation.close()
    slow, fast = dict(found[:2]), dict(found[2:])
    assert slow["mlp"] == pytest.approx(fast["mlp"], abs=0.02)
    assert slow["cnn"] == pytest.approx(fast["cnn"], abs=0.02)
    assert len(slow["mlp"]) == 12


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_some_examples_in_any_order_are_scored_as_among_all(model: str) -> None:
    """A panel asks for a batch of each of its judges, and two of them may hold the same example."""
    held = [[9, 3, 700], [3], [1200, 0, 9, 5]]
    some = Partition("panel", np.concatenate(held), np.cumsum([0, *map(len, held)]))
    each = Partition("each", np.arange(1437), np.arange(1438))
    for engine in ("sequential", "fast"):
        simulation = make_simulation(model=model, engine=engine)
        for _ in range(3):
            simulation.run_round(evaluate=False)
        alone, found = simulation.client_accuracy(each), simulation.client_accuracy(some)
        simulation.close()
        assert set(alone) == {0.0, 1.0}
        assert found == pytest.approx([sum(alone[i] for i in own) / len(own) for own in held])
