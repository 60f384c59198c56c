"""One round as it was computed, and a run that looks some rounds ahead."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedhyper.averages import Model
from fedhyper.loop import Decision, LoopState
from fedhyper.sim.aggregate import Aggregate
from fedhyper.sim.engines.base import Sent
from fedhyper.sim.start import Start


class RunState(NamedTuple):
    """Everything that changes. A round makes a new one; nothing is changed in place."""

    loop: LoopState  # weights, rates, what the server remembers
    delta: Tensor | float  # Δ_t-1, for CL's clients; 0: there is none
    counters: Tensor  # integer buffers: the largest of the clients'
    carried_lr: float  # median of the clients' final rates (CL with carry); NaN: not in use
    clip: float = math.nan  # C of the next round, in a private run
    released: int = 0  # and how often something was told with noise: once a round, twice where votes were counted


class Step(NamedTuple):
    """A round that was computed: the state after it, and what its record is made of."""

    state: RunState
    sent: Sent
    total: Aggregate
    delta: Tensor | None
    decision: Decision
    seconds: tuple[float, float]  # of training, and of what the server made of it


class LookAhead:
    """A run from ``state`` on that begins with ``start``.

    Its rounds are the run's own if that is the rate that is found, so they are kept if ``keep``: (state, step) each.
    """

    def __init__(
        self, step: Callable[[RunState, Start | None], Step], state: RunState, start: Start, *, keep: bool
    ) -> None:
        self.trials = 0
        self.kept: deque[tuple[RunState, Step]] = deque()
        self._step, self._state, self._keep = step, state, keep
        self._start: Start | None = start

    def step(self) -> Model | None:
        """What is kept after one round more, the mean of the last rounds; None where it had no usable update."""
        step = self._step(self._state, self._start)
        if self._keep:
            self.kept.append((self._state, step))
        self._state, self._start = step.state, None
        self.trials += step.total.sent
        # where each client is drawn by itself a round may have nobody, which says nothing about its rate
        return None if step.delta is None and step.total.sent else step.state.loop.mean
