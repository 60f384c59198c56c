"""The workloads, and the files from which every contender does exactly the same rounds."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import load_task
from fedhyper.sim.methods import make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
import protocol  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A task split among clients, and how a round goes."""

    task: str
    model: str
    clients: int
    clients_per_round: int
    batch_size: int
    local_lr: float
    local_epochs: int = 1
    local_steps: int = 0
    kind: str = "dirichlet"
    seed: int = 0


WORKLOADS = {
    "W1": Workload(task="fmnist", model="cnn", clients=100, clients_per_round=10, batch_size=64, local_lr=0.01),
    "W0": Workload(task="mnist", model="logistic", clients=100, clients_per_round=10, batch_size=10, local_lr=0.01),
    "softmax40": Workload(
        task="mnist", model="logistic", clients=100, clients_per_round=40, batch_size=10, local_lr=0.01
    ),
    "cnn10": Workload(task="fmnist", model="cnn", clients=1000, clients_per_round=40, batch_size=10, local_lr=0.01),
    # 3,000 clients of 20 images
    "mlp20": Workload(
        task="mnist", model="mlp", clients=3000, clients_per_round=100, batch_size=10, local_lr=0.01, kind="iid"
    ),
    "cnn20": Workload(
        task="fmnist", model="cnn", clients=3000, clients_per_round=100, batch_size=10, local_lr=0.01, kind="iid"
    ),
    "resnet": Workload(
        task="cifar10",
        model="resnet18",
        clients=100,
        clients_per_round=4,
        batch_size=32,
        local_lr=0.01,
        local_steps=2,
        kind="iid",
    ),
    "lstm": Workload(
        task="shakespeare",
        model="lstm",
        clients=100,
        clients_per_round=4,
        batch_size=32,
        local_lr=0.1,
        local_steps=6,
        kind="iid",
    ),
    "smoke": Workload(task="digits", model="digits", clients=20, clients_per_round=4, batch_size=10, local_lr=0.05),
}


def prepare(workload: Workload, directory: Path, rounds: int) -> None:
    """Write the data, w_0 and ``rounds`` rounds to ``directory``; the rounds are those that fedhyper draws itself."""
    directory.mkdir(parents=True, exist_ok=True)
    task = load_task(workload.task)
    labels = task.train_y.numpy()
    partition = make_partition(workload.kind, labels, workload.clients, seed=workload.seed, concentration=0.5)
    name = "logistic" if workload.model == "digits" else workload.model
    model = make_model(name, task.shape, task.classes, seed=0, tokens=task.tokens)
    settings = {**asdict(workload), "classes": task.classes}
    (directory / "work.json").write_text(json.dumps(settings))
    for part in ("train_x", "train_y", "test_x", "test_y"):
        np.save(directory / f"{part}.npy", getattr(task, part).numpy())
    np.savez(directory / "partition.npz", indices=partition.indices, offsets=partition.offsets)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    np.save(directory / "weights.npy", weights.numpy())
    simulation = Simulation(
        task=task,
        partition=partition,
        model=model,
        method=make_method("fedavg", local_lr=workload.local_lr, global_lr=1.0),
        clients_per_round=workload.clients_per_round,
        local_epochs=workload.local_epochs,
        local_steps=workload.local_steps,
        batch_size=workload.batch_size,
        seed=workload.seed,
        norm_cap=0.0,  # the peers have none
    )
    for t in range(rounds):
        clients = [protocol.Client(c.client, c.examples, list(c.batches)) for c in simulation.cohorts.tasks(t)]
        protocol.save_round(directory, t, clients)
    simulation.close()
