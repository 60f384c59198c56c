"""The rates that clients used: every one of one client's, four numbers for each client of a stack."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

_KEPT = 1_024  # steps of a stack that are kept before they are summed up: a million must take no memory

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Used(NamedTuple):
    """What a reply says of the rates of one client's local steps."""

    lr_mean: float
    lr_min: float
    lr_max: float
    lr_last: float


class StackRates:
    """The rates of a stack of clients, which take their steps together; those at work are the first n."""

    def __init__(self, clients: int) -> None:
        self._steps: list[tuple[int, Any]] = []
        self._count, self._sum, self._last = (np.zeros(clients) for _ in range(3))
        self._low, self._high = np.full(clients, np.inf), np.full(clients, -np.inf)

    def add(self, n: int, rate: Any) -> None:
        """A step of the first ``n`` clients: a float for all of them, or a tensor or array ``[n]``."""
        self._steps.append((n, rate))
        if len(self._steps) == _KEPT:
            self._fold()

    def of(self, row: int) -> Used:
        """The rates of one client."""
        self._fold()
        sums = (self._sum[row] / self._count[row], self._low[row], self._high[row], self._last[row])
        return Used(*(float(value) for value in sums))

    def _fold(self) -> None:
        for n, block in self._blocks():
            # rows are added one after the other, also when there is one column: the sum has the bits of Python's
            self._sum[:n] = np.add.accumulate([self._sum[:n], *block])[-1]
            self._low[:n] = np.minimum(self._low[:n], block.min(0))
            self._high[:n] = np.maximum(self._high[:n], block.max(0))
            self._last[:n] = block[-1]
            self._count[:n] += len(block)
        self._steps = []

    def _blocks(self) -> Iterator[tuple[int, Floats]]:
        for n, steps in groupby(self._steps, key=lambda step: step[0]):
            rates = [rate for _, rate in steps]
            if isinstance(rates[0], float):
                yield n, np.repeat(np.array(rates)[:, None], n, 1)
            elif isinstance(rates[0], np.ndarray):
                yield n, np.array(rates, np.float64)
            else:
                yield n, torch.stack(rates).cpu().double().numpy()
