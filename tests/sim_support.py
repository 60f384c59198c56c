"""Small federated runs for the tests of the simulator."""

from __future__ import annotations

from typing import Any

import torch

from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import Task, load_task
from fedhyper.sim.methods import Local, make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation


def make_simulation(
    method: str = "fedavg",
    *,
    model: Any = "mlp",
    task: Task | None = None,
    local_lr: float = 0.1,
    global_lr: float = 1.0,
    clients: int = 12,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    local: Local | None = None,
    **settings: Any,
) -> Simulation:
    """A run on the digits with ragged clients; ``model`` is a name or a module."""
    task = task or load_task("digits")
    if isinstance(model, str):
        model = make_model(model, task.shape, task.classes, seed=seed, tokens=task.tokens)
    partition = make_partition("dirichlet", task.labels, clients, seed=seed, concentration=0.3)
    settings = {"clients_per_round": 4, "local_epochs": 1, "batch_size": 16} | settings
    made = make_method(method, local_lr=local_lr, global_lr=global_lr, local=local, **(options or {}))
    return Simulation(task=task, partition=partition, model=model, method=made, seed=seed, **settings)


def run(simulation: Simulation, rounds: int) -> list[dict[str, Any]]:
    """Records without their timings."""
    records = [simulation.run_round() for _ in range(rounds)]
    simulation.close()
    return [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in records]


def batchnorm_net() -> torch.nn.Module:
    """A small convolutional network with statistics and a counter to average."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 10),
    )
