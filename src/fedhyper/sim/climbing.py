"""The learning-rate-free start in the simulator: every client of a round tries rates out, and returns its best round.

A trial is a local round with its first batch once more at the end, so the mean loss of its steps is the ladder's score.
Clients that want the same rung are trained together; what no client keeps is thrown away at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedhyper.arrays import inner
from fedhyper.automatic.ladder import TRIED, Ladder
from fedhyper.sim.engines.base import ClientTask, Engine, Reply, Sent


class Climbed(NamedTuple):
    """A round in which clients tried rates out.

    replies  each client's, at the rung it votes for
    votes    (rung, what was gained) of each that does not abstain
    trials   local rounds beyond the one that every client makes anyway, all clients together: what the start costs
    """

    replies: Iterator[Reply]
    votes: tuple[tuple[int, float], ...]
    trials: int


def climb(engine: Engine, tasks: Sequence[ClientTask], sent: Sent, ladder: Ladder) -> Climbed:
    """The clients of ``tasks`` try rates out, with whatever optimizer they have."""
    longer = [task._replace(batches=[*task.batches, task.batches[0]]) for task in tasks]
    length = math.sqrt(float(inner(sent.weights, sent.weights)))
    first = engine.train(longer, sent._replace(local_lr=TRIED))
    starts = [ladder.start(math.sqrt(float(inner(reply.delta, reply.delta))), length) for reply in first]
    scores: list[dict[int, float]] = [{} for _ in tasks]
    best: dict[int, Reply] = {}
    while wanted := _wanted(ladder, scores, starts):
        for rung, clients in sorted(wanted.items()):
            replies = engine.train([longer[i] for i in clients], sent._replace(local_lr=ladder.rate(rung)))
            for i, reply in zip(clients, replies, strict=True):
                usable = math.isfinite(float(inner(reply.delta, reply.delta)))
                scores[i][rung] = reply.mean_loss if usable else math.inf
                if ladder.best(scores[i]) == rung:
                    best[i] = reply
    votes = [(vote, ladder.gained(one)) for one in scores if (vote := ladder.vote(one)) is not None]
    trials = sum(map(len, scores))  # and the one that found where to begin, for the one that is made anyway
    return Climbed(iter([best[i] for i in range(len(tasks))]), tuple(votes), trials)


def _wanted(ladder: Ladder, scores: Sequence[dict[int, float]], starts: Sequence[int]) -> dict[int, list[int]]:
    """Which clients want to try which rung next."""
    wanted = defaultdict(list)
    for i, (one, start) in enumerate(zip(scores, starts, strict=True)):
        rung = ladder.next(one, start)
        if rung is not None:
            wanted[rung].append(i)
    return wanted
