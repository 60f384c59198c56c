"""What the apps share: the digits, three nets, and a training loop that knows nothing of fedhyper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from sklearn.datasets import load_digits
from torch import nn

Data = tuple[torch.Tensor, torch.Tensor]


@cache
def load_all() -> tuple[Data, Data]:
    """Every fourth image is for the test."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    test = torch.arange(len(y)) % 4 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def load(context: Any) -> Data:
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    (x, y), _ = load_all()
    return x[part::parts], y[part::parts]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def batchnorm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class Adapted(nn.Module):
    """A frozen body, an adapter of rank 4 beside it, and a head, in the manner of PEFT."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(64, 64)
        self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.head = nn.Linear(64, 10)
        nn.init.zeros_(self.up.weight)
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x) + self.up(self.down(x))))  # type: ignore[no-any-return]

    def partial_state(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.state_dict().items() if not name.startswith("body")}


def train(
    net: nn.Module, data: Data, optimizer: torch.optim.Optimizer, steps: Iterable[Callable[[], None]] = ()
) -> float:
    """One epoch in batches of 16; the mean loss. ``steps`` are called after each batch: schedules."""
    net.train()
    losses = []
    for x, y in zip(data[0].split(16), data[1].split(16), strict=True):
        if len(x) < 2:  # BatchNorm
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        for step in steps:
            step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def accuracy(net: nn.Module) -> float:
    net.eval()
    x, y = load_all()[1]
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())


def answer(message: Message, arrays: ArrayRecord, **metrics: Any) -> Message:
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)
