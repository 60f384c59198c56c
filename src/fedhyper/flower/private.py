"""Private rounds: clip, mean, noise, and only then may anybody look: the mechanism is ``fedhyper.privacy``.

All that a round's clients sent becomes one reply that none of them sent, w − Δ with Δ their noisy mean. The inner
strategy and the schedule see that one and nothing else, so whatever they make of it is post-processing: momentum, Adam,
both rates, the mean that is kept. Clients' metrics stay where they are; votes for a rate are counted with noise.

Who takes part is decided by a coin for each node, at the inner strategy's ``fraction_train``: ε is valid for that.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from fedhyper.automatic.ladder import RUNGS
from fedhyper.errors import UserError
from fedhyper.flower.aggregate import Aggregate, Aggregator
from fedhyper.flower.inner import nesting
from fedhyper.flower.nodes import Roster
from fedhyper.flower.records.layout import Arrays, Layout, pack
from fedhyper.flower.records.replies import Expected, NodeReply, sift
from fedhyper.flower.wire import VOTE
from fedhyper.privacy import Privacy

_AVERAGING = (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi)

_log = logging.getLogger("flwr")


class Spent(NamedTuple):
    """What changes from round to round: C of the next one, and how often something was told with noise."""

    clip: float
    released: int = 0


@dataclass(frozen=True)
class Terms:
    """A private run's settings.

    share  q, the chance of a node to take part in a round
    asked  M, how many take part on average: what the sum is divided by, which no client can change
    seed   where coins and noise come from; None: the operating system, so that nobody can take the noise off again
    """

    privacy: Privacy
    share: float
    asked: int
    seed: int | None

    def numbers(self, purpose: str, server_round: int) -> np.random.Generator:
        """A generator of its own for one purpose and round."""
        if self.seed is None:
            return np.random.default_rng()
        key = random.Random(f"{self.seed}/{purpose}/{server_round}").getrandbits(128)
        return np.random.Generator(np.random.Philox(key=key))

    def drawn(self, messages: list[Message], server_round: int, roster: Roster) -> list[Message]:
        """The messages to those nodes whose coin says so, in an order that is always the same."""
        ordered = sorted(messages, key=lambda message: roster.position(message.metadata.dst_node_id))
        coins = self.numbers("coins", server_round).random(len(ordered))
        chosen = [message for message, coin in zip(ordered, coins, strict=True) if coin < self.share]
        _log.info("fedhyper: coins at %g chose %d of %d nodes", self.share, len(chosen), len(ordered))
        return chosen


def terms(
    privacy: Privacy | None, strategy: Strategy, *, nodes: int | None, seed: int | None, aggregate_only: bool
) -> Terms | None:
    """What ``FedHyper(privacy=...)`` comes to, or UserError for what does not go with it."""
    if privacy is None:
        return None
    inner = nesting.innermost(strategy)
    base = next((one for one in type(inner).__mro__ if one.__module__.startswith("flwr.")), None)
    share = getattr(inner, "fraction_train", None)
    if aggregate_only:
        raise UserError("privacy clips every reply, and aggregate_only shows none; use one of them")
    if nesting.private(strategy):
        raise UserError("privacy makes its own noise; use FedHyper(FedAvg(), privacy=...), without Flower's wrapper")
    if base not in _AVERAGING or not isinstance(share, (int, float)):
        names = ", ".join(one.__name__ for one in _AVERAGING)
        raise UserError(f"privacy makes the mean itself, and {type(inner).__name__} makes another; use one of {names}")
    if nodes is None:
        raise UserError("privacy divides by a number that no client can change; say how many there are: nodes=...")
    if not 0 < share <= 1:
        raise UserError(f"fraction_train is a node's chance to take part, above 0 and at most 1, got {share!r}")
    asked = max(1, round(share * nodes))
    try:
        privacy.on_updates(asked)
    except ValueError as error:
        raise UserError(str(error)) from error
    return Terms(privacy, float(share), asked, seed)


@contextmanager
def everybody(strategy: Strategy) -> Iterator[None]:
    """Let the inner strategy configure every node, of which coins then choose."""
    inner: Any = nesting.innermost(strategy)
    before, inner.fraction_train = inner.fraction_train, 1.0
    try:
        yield
    finally:
        inner.fraction_train = before


class PrivateAggregator:
    """``through``, which is shown one reply that stands for all. ``spent`` is what a checkpoint has to have of it.

    silent  rounds in a row in which nodes were asked, and none had a usable answer
    """

    def __init__(self, through: Aggregator, terms: Terms) -> None:
        _refuse_statistics(through.layout)
        self.through, self.terms = through, terms
        self.spent, self.silent = Spent(terms.privacy.clip), 0

    def tell(self, server_round: int) -> dict[str, float]:
        """ε(δ) of all rounds so far, for the record and in the log."""
        rule = self.terms.privacy
        epsilon = rule.epsilon(self.spent.released, self.terms.share)
        _log.info("fedhyper: epsilon = %.3g at delta = %g after round %d", epsilon, rule.delta, server_round)
        return {"epsilon": epsilon}

    def resume(self, saved: list[float], lost: int) -> None:
        """Go on from what a checkpoint has; ValueError if that cannot be.

        ``lost``: rounds that may have been told after it was written. With a seed they are told again in the same bits,
        where clients answer the same; without one again with other noise, and that counts.
        """
        clip, released = saved
        if not (0 < clip < math.inf and isinstance(released, int) and released >= 0):
            raise ValueError(f"clip = {clip!r} and released = {released!r} cannot be")
        self.spent = Spent(clip, released + (lost if self.terms.seed is None else 0))

    def __call__(
        self, server_round: int, before: Arrays, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        """Everything of one round. Also when nobody came there is a mean, of noise: who came is nobody's business."""
        rule, asked, (clip, released) = self.terms.privacy, self.terms.asked, self.spent
        sound = [message for message in messages if not message.has_error()]
        believed, rejected = sift(sound, expected, before)
        believed = roster.in_order(believed)
        names, below = self.through.layout.trained, 0
        total = {name: np.zeros(before[name].shape) for name in names}
        for reply in believed:
            moved = {name: np.subtract(before[name], reply.arrays[name], dtype=np.float64) for name in names}
            cut, uncut = rule.clipped(moved, clip)
            below += uncut
            for name, array in total.items():
                array += cut[name]
        rng = self.terms.numbers("noise", server_round)
        normal = {name: rng.standard_normal(before[name].shape) for name in names}
        delta = rule.mean(total, normal, clip, asked)
        clip = rule.next_clip(clip, below, len(believed), float(rng.standard_normal()), asked)
        votes = self._votes(believed, server_round) if expected.climbs else None
        self.spent = Spent(clip, released + 1 + (votes is not None))
        self.silent = 0 if believed or not expected.asked else self.silent + 1

        stand_in = _message({name: before[name] - delta[name] for name in names}, self.through.layout, expected)
        alone = Expected(expected.server_round, expected.layout, {stand_in.metadata.src_node_id}, expected.weight_key)
        made = self.through(server_round, before, [stand_in], alone, roster)
        report = made.report._replace(votes=votes, climbed=votes is not None)
        mute = [reply._replace(metrics={}) for reply in believed]
        return made._replace(report=report, believed=mute, rejected=rejected)

    def _votes(self, believed: list[NodeReply], server_round: int) -> tuple[tuple[int, float], ...] | None:
        """What most voted for, as often as voices are needed; None: these clients cannot try rates out, and are not
        asked again (whether they can is a property of the app); (): nobody came, or all drowned in noise."""
        ladder = self.through.ladder
        rungs = [vote for reply in believed if isinstance(vote := reply.metrics.get(VOTE), int)]
        if not believed:
            return ()
        if ladder is None or 2 * len(rungs) <= len(believed):
            return None
        normal = self.terms.numbers("votes", server_round).standard_normal(RUNGS).tolist()
        counted = self.terms.privacy.counted(rungs, normal)
        voted = ladder.voted([rung for rung, _ in counted])
        return () if voted is None else ((voted, 0.0),) * ladder.voices


def _message(arrays: Arrays, layout: Layout, expected: Expected) -> Message:
    record = ArrayRecord({name: pack(arrays[name].astype(layout.dtypes[name])) for name in layout.shapes})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({expected.weight_key: 1})})
    return Message(content, 0, MessageType.TRAIN)


def _refuse_statistics(layout: Layout) -> None:
    if others := [*layout.statistics, *layout.counters]:
        raise UserError(
            f"privacy: the model averages statistics, which have no noise ({others[0]}); use one without (GroupNorm)"
        )
