"""What an engine is: it trains the clients of a round, in order, and evaluates a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedhyper.sim.data.augment import Augment
from fedhyper.sim.data.partition import Partition

Indices = np.ndarray[Any, np.dtype[np.int64]]


class Steps(Protocol):
    """The examples of each local step, the same ones each time they are gone through; a list of arrays is one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Indices]: ...


class ClientTask(NamedTuple):
    """One client's work in one round: the examples of each of its local steps, and what chance makes of them."""

    client: int
    examples: int
    batches: Steps
    augment: Augment | None = None
    width: int = 0  # examples of its longest batch; 0: nobody has looked

    @property
    def epoch_steps(self) -> int:
        """Steps of one pass over the client's data; its first batch is as long as batches get."""
        return -(-self.examples // len(next(iter(self.batches))))

    def seen(self, x: Tensor, step: int) -> Tensor:
        """The inputs of local step ``step`` as the model sees them."""
        return x if self.augment is None else self.augment(x, step)


class Reply(NamedTuple):
    """What one client sends back. ``delta`` = w_t − w_m, flat, in the standard layout; losses are means per example."""

    client: int
    examples: float  # its weight in the mean
    delta: Tensor
    buffers: Tensor
    counters: Tensor
    first_loss: float  # of the first batch, at the weights it was sent
    mean_loss: float  # over its local steps
    lr_mean: float
    lr_min: float
    lr_max: float
    lr_last: float

    @classmethod
    def of(cls, task: ClientTask, rates: Sequence[float], **parts: Any) -> Reply:
        """``task``'s reply; ``rates`` are those of its local steps, ``parts`` the update and the losses."""
        mean = sum(rates) / len(rates)
        parts |= {"lr_mean": mean, "lr_min": min(rates), "lr_max": max(rates), "lr_last": rates[-1]}
        return cls(client=task.client, examples=task.examples, **parts)


class Sent(NamedTuple):
    """What the server sends: w_t with its buffers, β_t, Δ_t-1 for CL's global term, and how many clients M it asks."""

    weights: Tensor
    buffers: Tensor
    counters: Tensor
    local_lr: float
    delta: Tensor | None
    cohort: int = 1


class Engine(Protocol):
    """Trains and evaluates. Two engines agree within rounding; one engine agrees with itself to the bit."""

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """The clients' replies, in the order of ``tasks`` however many workers there are."""

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """The task's loss and its score (accuracy, unless it says otherwise) on the test set, means per example."""

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """The mean score on each client's own training examples."""

    def close(self) -> None:
        """Give threads and settings back."""


class Divisible(Engine, Protocol):
    """An engine whose rounds fall into pieces of at most ``largest`` clients that can be trained apart."""

    largest: int

    def pieces(self, tasks: Sequence[ClientTask], workers: int) -> list[Sequence[int]]:
        """Positions in ``tasks``, each once and in their order. ``workers`` may change them, but no reply's bits."""

    def train_piece(self, tasks: Sequence[ClientTask], sent: Sent) -> Sequence[Reply]:
        """The replies of one piece, with the bits they have when ``train`` is given the whole."""


def gather(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Tensors joined to one flat vector on the CPU."""
    return torch.cat([t.detach().reshape(-1).to("cpu", dtype) for t in tensors] or [torch.empty(0, dtype=dtype)])


def scatter(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """The other way: ``vector`` cut up and written into ``tensors``."""
    for tensor, piece in zip(tensors, torch.split(vector, [t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))
