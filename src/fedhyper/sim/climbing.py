"""Clients try rates out, each by itself: the votes of the learning-rate-free start in the simulator.

A trial is a local round with its first batch once more at the end, so the mean loss of its steps is the ladder's score.
Clients that want the same rung are trained together; of their updates only the mean by rung is kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from torch import Tensor

from fedhyper.arrays import inner
from fedhyper.automatic.ladder import TRIED, Ladder
from fedhyper.sim.engines.base import ClientTask, Engine, Indices, Sent, Steps

Votes = tuple[tuple[int, float], ...]


class Climbed(NamedTuple):
    """What clients found.

    votes   (rung, what was gained) of each that does not abstain
    means   Σ p_m Δ_m by rung; whoever did not try a rung counts as not moved
    trials  local rounds that were made, all clients together
    """

    votes: Votes
    means: Mapping[int, Tensor]
    trials: int


def climb(
    engine: Engine,
    tasks: Sequence[ClientTask],
    sent: Sent,
    ladder: Ladder,
    shares: Callable[[ClientTask], float] | None = None,
) -> Climbed:
    """The clients of ``tasks`` try rates out, with whatever optimizer they have; means only if ``shares`` are given."""
    longer = [task._replace(batches=_AndFirst(task.batches)) for task in tasks]
    length = math.sqrt(float(inner(sent.weights, sent.weights)))
    first = engine.train(longer, sent._replace(local_lr=TRIED))
    starts = [ladder.start(math.sqrt(float(inner(reply.delta, reply.delta))), length) for reply in first]
    scores: list[dict[int, float]] = [{} for _ in tasks]
    means: dict[int, Tensor] = {}
    whole = sum(map(shares, tasks)) if shares else math.nan
    while wanted := _wanted(ladder, scores, starts):
        for rung, clients in sorted(wanted.items()):
            replies = engine.train([longer[i] for i in clients], sent._replace(local_lr=ladder.rate(rung)))
            for i, reply in zip(clients, replies, strict=True):
                alike = reply.delta.shape == sent.weights.shape
                usable = alike and math.isfinite(float(inner(reply.delta, reply.delta)))
                scores[i][rung] = reply.mean_loss if usable else math.inf
                if shares and usable:
                    part = reply.delta * (shares(tasks[i]) / whole)
                    means[rung] = means[rung] + part if rung in means else part
    votes = [(vote, ladder.gained(one)) for one in scores if (vote := ladder.vote(one)) is not None]
    return Climbed(tuple(votes), means, len(tasks) + sum(map(len, scores)))


class _AndFirst:
    """Local steps with the first batch once more at the end."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps) + 1

    def __iter__(self) -> Iterator[Indices]:
        return chain(self._steps, islice(self._steps, 1))


def _wanted(ladder: Ladder, scores: Sequence[dict[int, float]], starts: Sequence[int]) -> dict[int, list[int]]:
    """Which clients want to try which rung next."""
    wanted = defaultdict(list)
    for i, (one, start) in enumerate(zip(scores, starts, strict=True)):
        rung = ladder.next(one, start)
        if rung is not None:
            wanted[rung].append(i)
    return wanted
