"""Who trains in a round, and on which examples. All of it follows from the seed; nothing is kept between rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from fedhyper.sim.data.augment import Augment, Kind
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.engines.base import ClientTask, Indices
from fedhyper.sim.rng import generator

Sampling = Literal["uniform", "size", "poisson"]


@dataclass(frozen=True)
class Batches:
    """The examples of each local step: epochs reshuffled and cut, the last batch of an epoch shorter.

    They are drawn while they are used, the same ones each time: a million local steps take no memory.
    """

    own: Indices  # the client's examples
    size: int  # examples a step
    steps: int
    key: tuple[int, str, int, int]  # seed, purpose, round, client

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Indices]:
        return islice(self._epochs(), self.steps)

    def _epochs(self) -> Iterator[Indices]:
        rng = generator(*self.key)
        while True:
            order = rng.permutation(self.own)
            yield from (order[i : i + self.size] for i in range(0, len(order), self.size))


@dataclass(frozen=True)
class Cohorts:
    """The clients of each round with their work; ``Simulation`` says what the settings are."""

    partition: Partition
    seed: int
    clients_per_round: int
    sampling: Sampling
    batch_size: int
    local_epochs: int
    local_steps: int
    augment: Kind = "none"

    def tasks(self, t: int) -> list[ClientTask]:
        """Who trains in round ``t``, longest first: that balances the workers."""
        sizes, wanted = self.partition.sizes, self.clients_per_round
        rng = generator(self.seed, "clients", t)
        if self.sampling == "poisson":
            chosen = np.flatnonzero(rng.random(len(sizes)) < wanted / len(sizes))
        elif self.sampling == "uniform":
            chosen = rng.choice(len(sizes), wanted, replace=False, shuffle=False)
        else:
            chosen = rng.choice(len(sizes), wanted, replace=False, p=sizes / sizes.sum(), shuffle=False)
        ordered = sorted((int(client) for client in chosen), key=lambda client: (-int(sizes[client]), client))
        return [self._task(t, client) for client in ordered]

    def voters(self, t: int, most: int) -> list[ClientTask]:
        """Those of round ``t`` that try rates out: all, or ``most`` drawn from them."""
        tasks = self.tasks(t)
        some = generator(self.seed, "voices", t).permutation(len(tasks))[:most]
        return [tasks[i] for i in sorted(some)]

    def judges(self, t: int, batches: int) -> list[ClientTask]:
        """``batches`` tasks of one batch each, of as many clients if there are, whoever trains in round ``t``; with
        images as they are, for judges should not differ by chance."""
        clients = self.partition.clients
        asked = generator(self.seed, "panel").choice(clients, min(clients, batches), replace=False)
        tasks = [self._task(t, int(client)) for client in asked]
        each = -(-batches // len(tasks))
        return [
            task._replace(batches=[batch], augment=None, width=len(batch))
            for task in tasks
            for batch in islice(task.batches, each)
        ]

    def _task(self, t: int, client: int) -> ClientTask:
        own = self.partition.client(client)
        steps = self.local_steps or self.local_epochs * -(-len(own) // self.batch_size)
        batches = Batches(own, self.batch_size, steps, (self.seed, "batches", t, client))
        augment = None if self.augment == "none" else Augment(self.augment, self.seed, t, client)
        return ClientTask(client, len(own), batches, augment, min(self.batch_size, len(own)))
