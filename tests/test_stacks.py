"""Stacked clients: any number of local steps in the same memory, and what a step of many chunks gives."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from fedhyper.sim.engines.stacks import cost, cut
from fedhyper.sim.local.row_products import cosine_rows, inner_rows
from fedhyper.sim.local.step import Start, make_step
from fedhyper.sim.local.used import StackRates
from fedhyper.sim.methods import Local
from tests.sim_support import make_simulation, run

# as in the engine: numbers that overflow are expected
quiet = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

_PEAK = """
import resource, sys
from tests.sim_support import make_simulation
simulation = make_simulation("fedhyper-cl", model="logistic", local_lr=1e-3, local_steps=int(sys.argv[1]),
                             clients_per_round=8, batch_size=64, workers=1)
simulation.run_round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak(steps: int) -> int:
    """MB that a process has needed at most for a round of so many local steps."""
    return int(subprocess.run([sys.executable, "-c", _PEAK, str(steps)], capture_output=True, check=True).stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no ru_maxrss")
def test_memory_does_not_grow_with_local_steps() -> None:
    # drawn and padded at once, 8,000 steps of 8 clients would take 0.3 GB more than 1,000
    assert peak(8_000) < peak(1_000) + 60


@pytest.mark.parametrize("method", ["fedavg", "fedhyper-cl"])
def test_more_steps_than_are_prepared_at_once(method: str) -> None:
    settings = {"model": "logistic", "local_lr": 1e-3, "local_steps": 900, "batch_size": 128, "clients": 6}
    slow, fast = (run(make_simulation(method, engine=engine, **settings), 1)[0] for engine in ("sequential", "fast"))
    for key in ("local_lr", "local_lr_min", "local_lr_max", "train_loss", "test_loss", "update_norm"):
        assert slow[key] == pytest.approx(fast[key], rel=1e-3), key


def rows(scale: float, n: int = 5, size: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, size, generator=generator, dtype=torch.float64) * scale for _ in range(2))
    return a.float(), (a + b).float()


@quiet
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-22, 1e-30, 1e18, 1e25])
def test_inner_products_of_rows_are_those_of_float64(scale: float) -> None:
    # float32 underflows at 1e-22 squared and overflows at 1e25 squared
    a, b = rows(scale)
    expected = torch.stack([(a.double() * b.double()).sum(1), (a.double() * b[0].double()).sum(1)])
    lengths = torch.stack(
        [a.double().norm(dim=1) * b.double().norm(dim=1), a.double().norm(dim=1) * b[0].double().norm()]
    )
    found = torch.from_numpy(inner_rows(a, b, b[0]))
    assert ((found - expected).abs() <= 1e-6 * lengths).all()
    cosines = torch.from_numpy(cosine_rows(a, b, b[0]))
    assert ((cosines - expected / lengths).abs() <= 1e-6).all()


@quiet
def test_one_bad_row_leaves_the_others_alone() -> None:
    a, b = rows(1.0)
    good = inner_rows(a, b)[0]
    a[1, 3], a[2], a[3] = math.nan, a[2] * 1e30, 0.0
    b[2] *= 1e30
    found = inner_rows(a, b)[0]
    assert math.isnan(found[1])
    assert found[2] == pytest.approx(good[2] * 1e60, rel=1e-5)
    assert found[3] == 0
    assert found[[0, 4]].tolist() == good[[0, 4]].tolist()
    assert cosine_rows(a, b)[0][3] == 0


def test_a_row_does_not_depend_on_the_others() -> None:
    a, b = rows(1.0)
    assert inner_rows(a, b)[0].tolist() == [inner_rows(a[i : i + 1], b[i : i + 1])[0, 0] for i in range(len(a))]


@quiet
@pytest.mark.parametrize(
    "settings",
    [{}, {"apply": "log", "hypergrad": "cosine"}, {"global_term": "sign"}, {"global_term": "off", "apply": "relative"}],
)
def test_a_stack_of_rates_is_each_clients_own(settings: dict[str, Any]) -> None:
    # ragged: client 2 stops after two steps; client 1 meets a gradient that is not finite, and keeps its rate
    local = Local(kind="hyper", settings={"lr": 0.01, **settings}, needs_delta=True)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(n, 50, generator=generator) * 0.02 for n in (3, 3, 2, 2)]
    grads[2][1, 0] = math.inf
    delta, steps = torch.randn(50, generator=generator) * 0.02, torch.tensor([4, 4, 2])
    stack = make_step(local, torch.zeros(3, 50), Start(0.01, steps, steps, delta))
    for grad in grads:
        stack.step(grad.clone(), None)
    for row in range(3):
        alone = make_step(local, torch.zeros(50), Start(0.01, int(steps[row]), int(steps[row]), delta))
        for grad in (g for g in grads if row < len(g)):
            alone.step(grad[row].clone(), 0.0)
        used = alone.rates()
        expected = (sum(used) / len(used), min(used), max(used), used[-1])
        assert tuple(stack.used(row)) == pytest.approx(expected, rel=1e-5)
    assert len({stack.used(row).lr_last for row in range(3)}) == 3


def test_rates_of_a_million_steps_are_summed_up() -> None:
    rates = StackRates(2)
    for k in range(5_000):
        n = 2 if k < 1_500 else 1
        rates.add(n, np.full(n, 1.0 + k))
    assert rates.of(0) == (2_500.5, 1.0, 5_000.0, 5_000.0)
    assert rates.of(1) == (750.5, 1.0, 1_500.0, 1_500.0)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("method", ["fedavg", "fedhyper-cl", "fedprox", "delta-sgd", "fedsps", "fedhyper-cl-released"])
def test_a_clients_reply_does_not_depend_on_its_stack(model: str, method: str) -> None:
    simulation = make_simulation(method, model=model, clients=40, clients_per_round=24, batch_size=5, local_epochs=3)
    simulation.run_round()  # CL has a last global step from here on
    engine: Any = simulation.engine
    tasks = [task for task in simulation.cohorts.tasks(1) if task.width == 5]
    sent = simulation._sent(simulation._state)
    whole, *others = (
        [reply for piece in pieces for reply in engine.train_piece([tasks[i] for i in piece], sent)]
        for pieces in [engine.pieces(tasks, workers) for workers in (1, 2, 3)] + [[[i] for i in range(len(tasks))]]
    )
    assert len(engine.pieces(tasks, 3)) == 3
    for replies in others:
        for one, other in zip(whole, replies, strict=True):
            assert torch.equal(one.delta, other.delta)
            assert one[5:] == other[5:]
    simulation.close()


def test_where_a_reply_may_depend_on_its_stack_that_does_not_depend_on_the_workers() -> None:
    for settings in ({"batch_size": 1}, {"batch_size": 64}, {"batch_size": 500}):  # MKL's products; unequal widths
        simulation = make_simulation(model="mlp", clients=40, clients_per_round=24, **settings)
        engine: Any = simulation.engine
        tasks = simulation.cohorts.tasks(0)
        assert len({str(engine.pieces(tasks, workers)) for workers in (1, 2, 3)}) == 1
        simulation.close()


@pytest.mark.parametrize("steps", [[], [3], [9, 1, 1], [60, 50, 40, 30, 20, 10], list(range(200, 0, -2))])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_stacks_have_every_client_once_and_take_about_as_long(steps: list[int], count: int) -> None:
    stacks = cut(steps, count, 32)
    assert [i for stack in stacks for i in stack] == list(range(len(steps)))
    assert all(0 < len(stack) <= 32 for stack in stacks)
    costs = [cost([steps[i] for i in stack]) for stack in stacks]
    if len(steps) == 100:
        assert len(stacks) == (4 if count == 1 else 4 if count == 2 else 6 if count == 3 else 8)
    if len(steps) == 100 and count == 8:  # none of them is as large as can be
        assert max(costs) < 1.2 * sum(costs) / len(costs)


_RUN = """
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.build import make_simulation
for keys in ({"model": "logistic"}, {"model": "mlp", "model_options": {"hidden": 200, "depth": 2}}):
    values = {"task": "digits", "method": "fedhyper-cl", "rounds": 2, "batch_size": 64, "local_lr": 0.1}
    simulation = make_simulation(make_config(values | keys))
    simulation.run_round(evaluate=False)
    simulation.run_round(evaluate=False)
    print(simulation.weights_sha256())
    simulation.close()
"""


def test_same_bits_however_many_threads_numpy_has() -> None:
    """Small products are NumPy's: OpenBLAS would split large ones, with other bits."""
    seen = set()
    for threads in ("1", "2", "8"):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", _RUN], capture_output=True, text=True, env=environment, check=True)
        seen.add(done.stdout)
    assert len(seen) == 1
    assert len(seen.pop().split()) == 2
