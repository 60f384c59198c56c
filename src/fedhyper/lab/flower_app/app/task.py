"""The model, the data of one client, and the two loops. Replace these by your own."""

from collections.abc import Iterator
from functools import cache

import torch
from flwr.app import UserConfig
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import Task, load_task
from fedhyper.sim.models import make_model
from fedhyper.sim.rng import generator

load = cache(load_task)  # a simulation's workers serve many clients


def new_model(config: UserConfig) -> nn.Module:
    """A CNN, the same numbers everywhere for the same seed."""
    task: Task = load(str(config["task"]))
    return make_model("cnn", task.shape, task.classes, seed=int(config["seed"]))


def examples_of(partition: int, partitions: int, config: UserConfig) -> tuple[Tensor, Tensor]:
    """The images and labels that client number ``partition`` of ``partitions`` holds."""
    task: Task = load(str(config["task"]))
    concentration, seed = float(config["concentration"]), int(config["seed"])
    split = make_partition(
        "dirichlet", task.train_y.numpy(), partitions, seed=seed, concentration=concentration, min_size=2
    )
    own = torch.from_numpy(split.client(partition))
    return task.train_x[own], task.train_y[own]


def batches(count: int, config: UserConfig, *keys: int) -> Iterator[Tensor]:
    """Indices of every local step, shuffled anew each epoch; the same for the same seed, round and client."""
    rng = generator(int(config["seed"]), "batches", *keys)
    for _ in range(int(config["local-epochs"])):
        order = torch.from_numpy(rng.permutation(count))
        yield from order.split(int(config["batch-size"]))


def train(model: nn.Module, x: Tensor, y: Tensor, steps: list[Tensor], optimizer: torch.optim.Optimizer) -> list[float]:
    """One optimizer step for each batch; the loss of each comes back."""
    model.train()
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = cross_entropy(model(x[step]), y[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss, and accuracy as a fraction."""
    model.eval()
    outputs = torch.cat([model(part) for part in x.split(500)])
    return cross_entropy(outputs, y).item(), (outputs.argmax(1) == y).float().mean().item()
