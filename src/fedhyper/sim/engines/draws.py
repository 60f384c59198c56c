"""The examples of a stack's next local steps, drawn a few hundred at a time: a client may have a million."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from fedhyper.sim.engines.base import ClientTask, Indices


class Draw:
    """One client's batches, taken in order. No batch is longer than the first, whose length is ``width``."""

    def __init__(self, task: ClientTask) -> None:
        batches = iter(task.batches)
        first = next(batches)
        self.steps, self.width = len(task.batches), len(first)
        self.epoch_steps = -(-task.examples // self.width)
        self._batches = chain([first], batches)

    def next(self, steps: int) -> list[Indices]:
        """The batches of the next ``steps`` steps; fewer at the end."""
        return list(islice(self._batches, steps))


def padded(drawn: Sequence[list[Indices]], width: int) -> tuple[Tensor, Tensor]:
    """Example indices ``[step, client, width]`` and each example's share of its mean; padding has share 0.

    ``drawn`` are the batches of each client, the most of them first.
    """
    shape = (len(drawn[0]), len(drawn), width)
    index, shares = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for i, batches in enumerate(drawn):
        if batches:
            counts = np.array([len(batch) for batch in batches])
            step = np.repeat(np.arange(len(counts)), counts)
            place = np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts)
            index[step, i, place], shares[step, i, place] = np.concatenate(batches), 1 / counts[step]
    return torch.from_numpy(index), torch.from_numpy(shares)
