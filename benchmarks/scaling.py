"""How time and memory grow: one process a point, synthetic data; MNIST where a thousand clients train a round.

python scaling.py {clients,population,parameters} N     prints one JSON line
python scaling.py {softmax,cnn} N                       N registered clients, 1,000 of them a round, 20 rounds
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from protocol import peak_bytes

POINTS = {
    "clients": (10, 100, 1000),
    "population": (100, 1_000, 10_000, 100_000),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
}
REGISTERED = {"softmax": ("logistic", 10), "cnn": ("cnn", 20)}  # model, batch size
ROUNDS = 5
EXAMPLES = 20_000


def point(axis: str, n: int) -> dict[str, Any]:
    """Seconds to start, median seconds a round and peak bytes at ``n`` of ``axis``, the rest held still."""
    import torch

    from fedhyper.sim.data.partition import Partition
    from fedhyper.sim.data.tasks import Task
    from fedhyper.sim.methods import make_method
    from fedhyper.sim.models import make_model, parameter_count
    from fedhyper.sim.simulation import Simulation

    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((EXAMPLES, 1, 28, 28), np.float32))
    y = torch.from_numpy(rng.integers(0, 10, EXAMPLES))
    task = Task("synthetic", x, y, x[:500], y[:500], 10, "mlp")
    population = {"population": n, "clients": max(POINTS["clients"])}.get(axis, 100)
    held = 40
    # every client holds 40 examples, some of them other clients' too: the data stays what it is, the registry grows
    indices = (np.arange(population * held) * 7919) % EXAMPLES
    partition = Partition("synthetic", indices, np.arange(population + 1) * held)
    if axis == "parameters":
        model = make_model("mlp", task.shape, 10, seed=0, hidden=max(1, round(n / 795)))
    else:
        model = make_model("cnn", task.shape, 10, seed=0)
    before = peak_bytes()
    started = time.perf_counter()
    simulation = Simulation(
        task=task,
        partition=partition,
        model=model,
        method=make_method("fedhyper-g", local_lr=0.01, global_lr=1.0),
        clients_per_round=n if axis == "clients" else 10,
        local_epochs=1,
        batch_size=20,
        seed=0,
        workers=2,
    )
    simulation.run_round(evaluate=False)
    first = time.perf_counter() - started
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        simulation.run_round(evaluate=False)
        seconds.append(time.perf_counter() - started)
    simulation.close()
    after = peak_bytes()
    return {
        "axis": axis,
        "n": n,
        "parameters": parameter_count(model),
        "first_round_s": first,
        "round_s": statistics.median(seconds),
        "peak_bytes": after,
        "added_bytes": after - before,
    }


def registered(axis: str, population: int, rounds: int = 20) -> dict[str, Any]:
    """Twenty rounds of a thousand clients with 20 examples each, whatever the number of clients that are registered."""
    from fedhyper.sim.data.partition import Partition
    from fedhyper.sim.data.tasks import load_task
    from fedhyper.sim.engines.processes import ProcessEngine
    from fedhyper.sim.methods import make_method
    from fedhyper.sim.models import make_model
    from fedhyper.sim.simulation import Simulation

    task, held = load_task("mnist"), 20
    name, batch_size = REGISTERED[axis]
    indices = (np.arange(population * held) * 7919) % len(task.train_x)
    before = peak_bytes()
    started = time.perf_counter()
    simulation = Simulation(
        task=task,
        partition=Partition("given", indices, np.arange(population + 1) * held),
        model=make_model(name, task.shape, task.classes, seed=0),
        method=make_method("fedavg", local_lr=0.05, global_lr=1.0),
        clients_per_round=1000,
        local_epochs=1,
        batch_size=batch_size,
        seed=0,
        workers=2,
    )
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        simulation.run_round(evaluate=False)
        seconds.append(time.perf_counter() - began)
    pids = simulation.engine.pids if isinstance(simulation.engine, ProcessEngine) else []
    workers = [_proportional(pid) for pid in pids]
    total = time.perf_counter() - started
    simulation.close()
    row = {"axis": axis, "n": population, "seconds": total, "round_s": statistics.median(seconds)}
    row |= {"peak_bytes": peak_bytes(), "added_bytes": peak_bytes() - before, "workers_bytes": sum(workers)}
    return row | {"workers": len(workers), "trained_by": simulation.trained_by}


def _proportional(pid: int) -> int:
    """Bytes of a process, those it shares divided by how many share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def table(axes: tuple[str, ...] = tuple(POINTS)) -> list[dict[str, Any]]:
    """Every point, each in a process of its own."""
    rows = []
    for axis in axes:
        for n in POINTS[axis]:
            command = [sys.executable, str(Path(__file__)), axis, str(n)]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return rows


if __name__ == "__main__":
    measure = registered if sys.argv[1] in REGISTERED else point
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
