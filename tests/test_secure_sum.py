"""Secure aggregation: what a schedule reads is a sum, so a server that sees only a masked sum has the same run.

Every client sends one vector: weight × (update, |update|², loss, 1), and its vote as one bin of a histogram. It is
rounded to whole numbers of 2⁻²⁴ modulo 2⁶⁴, and for every pair of clients one adds a random mask that the other
takes off. What arrives from a client is random numbers; the masks cancel in the sum (Bonawitz et al. 2017).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fedhyper import FedExP, FedHyperG, FedHyperSL, Pair, RoundReport, ServerLoop, auto
from fedhyper.automatic.ladder import HIGHEST, LOWEST
from fedhyper.sim.rng import generator

SCALE, SIZE, CLIENTS, ROUNDS = 2.0**24, 6, 10, 15
PLANS = {
    "fedavg": Pair(),
    "g": Pair(global_rule=FedHyperG()),
    "g+sl": Pair(global_rule=FedHyperG(), local_rule=FedHyperSL(lr=0.1)),
    "fedexp": Pair(global_rule=FedExP()),
    "auto": auto(),
}


class Client(NamedTuple):
    """A quadratic bowl of its own, on which it steps a few times."""

    goal: np.ndarray
    weight: float

    def vector(self, weights: np.ndarray, rate: float, climbs: bool) -> np.ndarray:
        """All it sends."""
        away = weights - self.goal
        delta = away * (1 - (1 - min(rate, 1.0)) ** 5)
        votes = np.zeros(HIGHEST - LOWEST + 1)
        votes[-1 - LOWEST] = climbs  # for the rung −1
        scalars = [float(delta @ delta), float(away @ away) / 2, 1.0]
        return np.concatenate([self.weight * np.concatenate([delta, scalars]), votes])


def clients() -> list[Client]:
    rng = np.random.default_rng(0)
    return [Client(rng.normal(size=SIZE) + 1, float(rng.integers(5, 50))) for _ in range(CLIENTS)]


def whole(vector: np.ndarray) -> np.ndarray:
    return np.round(vector * SCALE).astype(np.int64).view(np.uint64)


def masked(vectors: list[np.ndarray], t: int) -> list[np.ndarray]:
    """What each client sends: its whole numbers and, for every pair, a mask that one adds and the other takes off."""
    sent = [whole(vector).copy() for vector in vectors]
    for a in range(len(sent)):
        for b in range(a):
            mask = generator(7, "mask", t, a, b).integers(0, 2**64, len(sent[a]), np.uint64)
            sent[a] += mask
            sent[b] -= mask
    return sent


def report(total: np.ndarray, climbs: bool) -> RoundReport:
    """All a server makes of the sum, which is all it sees."""
    numbers = total.view(np.int64) / SCALE
    weight = numbers[SIZE + 2]
    delta, sq_norm, loss = numbers[:SIZE] / weight, numbers[SIZE] / weight, numbers[SIZE + 1] / weight
    counts = np.round(numbers[SIZE + 3 :]).astype(int)
    votes = tuple((LOWEST + i, 0.0) for i, count in enumerate(counts) for _ in range(count)) if climbs else None
    return RoundReport(delta, (float(loss),), float(sq_norm), votes=votes, climbed=climbs)


def trained(plan: Any, *, hidden: bool) -> tuple[np.ndarray, list[float]]:
    loop, all_of_them = ServerLoop(plan), clients()
    state, rates = loop.init(np.zeros(SIZE)), []
    for t in range(ROUNDS):
        climbs = state.climbs and plan.ladder is not None
        vectors = [client.vector(state.now.weights, state.local_lr, climbs) for client in all_of_them]
        sent = masked(vectors, t) if hidden else [whole(vector) for vector in vectors]
        state, decision = loop.update(state, report(np.sum(sent, axis=0, dtype=np.uint64), climbs))
        rates += [decision.global_lr, decision.local_lr]
    return state.mean.weights, rates


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", PLANS)
def test_a_server_that_sees_only_the_masked_sum_has_the_same_run(name: str) -> None:
    seen, rates = trained(PLANS[name], hidden=False)
    hidden, same_rates = trained(PLANS[name], hidden=True)
    assert seen.tobytes() == hidden.tobytes()
    assert rates == same_rates
    goal = np.average([c.goal for c in clients()], axis=0, weights=[c.weight for c in clients()])
    assert np.linalg.norm(seen - goal) < 0.5 * np.linalg.norm(goal)  # it learned something, too
    assert name == "fedavg" or len(set(rates)) > 2


def test_one_message_alone_is_random_numbers() -> None:
    """Its bits say nothing of the client: two clients with other data send equally random ones."""
    vectors = [client.vector(np.zeros(SIZE), 0.1, False) for client in clients()]
    for sent, vector in zip(masked(vectors, 0), vectors, strict=True):
        bits = np.unpackbits(sent.view(np.uint8))
        assert 0.4 < bits.mean() < 0.6
        assert not np.any(sent == whole(vector))
