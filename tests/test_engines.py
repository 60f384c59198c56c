"""Fast twin = slow twin, for every method, ragged clients and buffers included; and the same bits for any workers."""

from __future__ import annotations

import pytest
import torch

from fedhyper.sim.registry import METHODS
from tests.sim_support import batchnorm_net, make_simulation, run

ROUNDS = 3
ALL = [*METHODS, "fedhyper-g+momentum", "fedhyper-g+cl+adam"]
# Adam-like servers have directions of unit size: a rate of 1 would throw the model away and rounding with it.
GLOBAL_LR = {"fedadam": 0.01, "fedadagrad": 0.01, "fedyogi": 0.01, "fedhyper-g+cl+adam": 0.01}
LOCAL_LR = {"local-adam": 0.003}


def rates(method: str) -> dict[str, float]:
    return {"global_lr": GLOBAL_LR.get(method, 1.0), "local_lr": LOCAL_LR.get(method, 0.05)}


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
    slow = make_simulation(method, model=model, engine="sequential", **rates(method))
    fast = make_simulation(method, model=model, engine="fast", workers=2, **rates(method))
    assert_alike(run(slow, ROUNDS), run(fast, ROUNDS), tolerance=2e-3)
    difference = max(
        float((a - b).abs().max())
        for a, b in zip(slow.named_weights().values(), fast.named_weights().values(), strict=True)
    )
    assert difference < 2e-4


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


@pytest.mark.parametrize(("model", "method"), [("cnn", "fedhyper-g+cl"), ("mlp", "fedhyper-g+cl"), ("mlp", "fedexp")])
def test_same_bits_for_any_workers_and_threads(model: str, method: str) -> None:
    digests, records = set(), []
    threads = torch.get_num_threads()
    try:
        for workers, torch_threads in [(1, 1), (2, 1), (4, 2), (3, 2)]:
            torch.set_num_threads(torch_threads)
            simulation = make_simulation(method, model=model, workers=workers, clients=40, clients_per_round=36)
            records.append(run(simulation, 2))
            digests.add(simulation.weights_sha256())
            assert torch.get_num_threads() == torch_threads, "the engine gives the threads back"
    finally:
        torch.set_num_threads(threads)
    assert len(digests) == 1
    assert all(record == records[0] for record in records)


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
