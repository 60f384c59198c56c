"""Clients that lie, for tests and benchmarks of a defence: an engine around another one that changes what some send.

    simulation.engine = HostileEngine(simulation.engine, ATTACKS["turned ×10"], clients={3})

No config names it: a run that is under attack on purpose is written in Python (``benchmarks/hostile.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedhyper.sim.data.partition import Partition
from fedhyper.sim.engines.base import ClientTask, Engine, Reply, Sent


class Known(NamedTuple):
    """What a hostile client knows.

    round  counted from 1
    sent   what the server sent to all
    step   the server's last step, w_t-1 − w_t: the difference of two models it was sent; zeros: there was none
    """

    round: int
    sent: Sent
    step: Tensor


Attack = Callable[[Reply, Known], Reply]


class HostileEngine:
    """``engine``, with the replies of these ``clients`` as ``attack`` makes them of honest ones."""

    def __init__(self, engine: Engine, attack: Attack, clients: Collection[int]) -> None:
        self.inner, self.attack, self.clients = engine, attack, frozenset(clients)
        self._round, self._sent, self._step = 0, torch.empty(0), torch.empty(0)

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """Honest replies, and the others'."""
        if sent.weights is not self._sent:  # the trials of a start share one
            step = self._sent - sent.weights if self._round else torch.zeros_like(sent.weights)
            self._round, self._sent, self._step = self._round + 1, sent.weights, step
        known = Known(self._round, sent, self._step)
        for reply in self.inner.train(tasks, sent):
            yield self.attack(reply, known) if reply.client in self.clients else reply

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """The inner engine's: the server's own test is not the clients'."""
        return self.inner.evaluate(sent)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """The inner engine's."""
        return self.inner.accuracy_by_client(sent, partition)

    def close(self) -> None:
        """Close the inner engine."""
        self.inner.close()


def _times(factor: float) -> Attack:
    return lambda reply, known: reply._replace(delta=reply.delta * factor)


def _last_step(factor: float) -> Attack:
    return lambda reply, known: reply._replace(delta=known.step * factor)


def _heavy(factor: float) -> Attack:
    return lambda reply, known: reply._replace(delta=reply.delta * factor, examples=2**53)


def _loss(lie: Callable[[float], float], until: float = math.inf) -> Attack:
    """Honest for five rounds, so that it is believed when it begins to lie."""

    def attack(reply: Reply, known: Known) -> Reply:
        if not 6 <= known.round <= until:
            return reply
        return reply._replace(first_loss=lie(reply.first_loss), mean_loss=lie(reply.mean_loss))

    return attack


def _noise(reply: Reply, known: Known) -> Reply:
    source = torch.Generator().manual_seed(known.round * 100_003 + reply.client)
    noise = torch.randn(reply.delta.shape, generator=source)
    return reply._replace(delta=noise * (10 * reply.delta.norm() / noise.norm()))


def _votes_high(reply: Reply, known: Known) -> Reply:
    """Its loss falls with the rate for ever: it votes for the highest there is."""
    return reply._replace(mean_loss=-known.sent.local_lr, delta=torch.zeros_like(reply.delta))


def _votes_low(reply: Reply, known: Known) -> Reply:
    return reply._replace(mean_loss=known.sent.local_lr, delta=torch.zeros_like(reply.delta))


ATTACKS: dict[str, Attack] = {
    "silent": _times(0.0),
    "not a number": _times(math.nan),
    "turned": _times(-1.0),
    "turned ×3": _times(-3.0),
    "turned ×10": _times(-10.0),
    "× 1e6": _times(1e6),
    "noise ×10": _noise,
    "last step ×100": _last_step(100.0),
    "last step ×−100": _last_step(-100.0),
    "weight 2⁵³": _heavy(1.0),
    "weight 2⁵³, turned": _heavy(-1.0),
    "weight 2⁵³, silent": _heavy(0.0),
    "loss 1e9": _loss(lambda _: 1e9),
    "loss −1e9": _loss(lambda _: -1e9),
    "loss −1e9 once": _loss(lambda _: -1e9, until=6),
    "loss NaN": _loss(lambda _: math.nan),
    "loss ×3": _loss(lambda loss: 3 * loss),
    "loss 10 for 15 rounds": _loss(lambda _: 10.0, until=20),
    "votes high": _votes_high,
    "votes low": _votes_low,
}
