"""Flower's quickstart-pytorch in its shipped setting, in process: CIFAR-10, three rounds, with and without FedHyper.

    FEDHYPER_DATA=... python -m benchmarks.flower_cifar [NODES ...]      # from the project's root; minutes a line

A net of the sizes of the app's (two convolutions, three linear layers), batches of 32, SGD at 0.1, momentum 0.9, one
epoch of four fifths of each node's images, all nodes each round. Accuracy on the test set, in percent.
"""

from __future__ import annotations

import logging
import random
import sys
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedhyper.flower import FedHyper
from fedhyper.sim.data.tasks import Task, load_task
from tests.flower_support import LocalGrid

ROUNDS, BATCH, SHIPPED, ORDERS = 3, 32, 0.1, 3


@cache
def data() -> Task:
    return load_task("cifar10")


def net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def train(message: Message, context: Context) -> Message:
    """One epoch, in an order that is the node's own and new each round."""
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    own = torch.randperm(len(data().train_y), generator=torch.Generator().manual_seed(0))[part::parts]
    own = own[: len(own) * 4 // 5]
    order = torch.Generator().manual_seed(1000 * int(message.content["config"]["server-round"]) + part)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
    total = 0.0
    batches = own[torch.randperm(len(own), generator=order)].split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data().train_x[batch]), data().train_y[batch])
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"train_loss": total / len(batches), "num-examples": len(own)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def accuracy(strategy: Any, nodes: int, rate: float, order: int) -> float:
    app = ClientApp()
    app.train()(train)
    random.seed(order)
    torch.manual_seed(0)
    model = net()
    config, arrays = ConfigRecord({"lr": rate}), ArrayRecord(model.state_dict())
    result = strategy.start(LocalGrid(app, nodes, shuffle=order), arrays, num_rounds=ROUNDS, train_config=config)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    with torch.no_grad():
        said = torch.cat([model(part).argmax(1) for part in data().test_x.split(500)])
    return round(100 * float((said == data().test_y).float().mean()), 1)


def main(counts: list[int]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for nodes in counts:
        for order in range(ORDERS):
            ours = accuracy(FedHyper(FedAvg(fraction_evaluate=0.0)), nodes, SHIPPED, order)
            print(nodes, "nodes, two lines", ours, flush=True)
        for rate in (SHIPPED, 0.01):
            print(nodes, "nodes, plain at", rate, accuracy(FedAvg(fraction_evaluate=0.0), nodes, rate, 0), flush=True)


if __name__ == "__main__":
    main(list(map(int, sys.argv[1:])) or [10])
