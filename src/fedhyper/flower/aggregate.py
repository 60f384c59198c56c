"""From the replies that are believed to a report for the server loop, through the inner strategy.

An inner strategy that aggregates (FedAvg, FedMedian, Krum) gives w − Δ. One that makes a step of its own (FedAvgM,
FedAdam, FedAdagrad, FedYogi) gives the stepped weights, and Δ is read from what it remembers, or summed up here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedhyper.automatic.ladder import Ladder, Tried
from fedhyper.flower import wrapped
from fedhyper.flower.layout import Arrays, Layout, Opened, mean, views
from fedhyper.flower.losses import TRAIN_LOSS, Losses, first_number, reported, sq_distances
from fedhyper.flower.nodes import Roster
from fedhyper.flower.replies import Expected, NodeReply, Refusal, sift
from fedhyper.flower.wire import LOSS, SQ_NORM
from fedhyper.loop import RoundReport


class Aggregate(NamedTuple):
    """What came of a round's replies.

    report      for the server loop
    believed    the replies in it
    rejected    the replies that were refused, and why
    memory      what the inner strategy remembered before this round
    sound       False: a number in the result is not finite, or an array is missing
    counters    integer arrays: the largest of the clients'
    came        the inner strategy's result, as it came
    metrics     the inner strategy's means of the clients' metrics
    train_loss  the clients' mean training loss, or the loss that schedules read; None: nobody reports one
    """

    report: RoundReport
    believed: list[NodeReply]
    rejected: list[Refusal]
    memory: dict[str, Any]
    sound: bool = True
    counters: Arrays = {}  # noqa: RUF012  never written to
    came: Opened | None = None
    metrics: MetricRecord | None = None
    train_loss: float | None = None


@dataclass(frozen=True)
class Aggregator:
    """How the replies of a run are put together.

    requires        what the plan reads, see ``Plan.requires``
    aggregate_only  the replies are masked: the inner strategy's result is all there is to see
    ladder          how clients try rates out; None: they never do
    """

    strategy: Strategy
    layout: Layout
    requires: frozenset[str]
    losses: Losses
    aggregate_only: bool
    ladder: Ladder | None = None

    def __call__(
        self, server_round: int, sent: Opened, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        """Everything of one round. ``sent`` is what clients were sent; ``roster`` gives the order of replies.

        Flower's own mean is finite only if every number in it is: its replies are looked into only if it is not.
        """
        contents = [message.content if message.has_content() else None for message in messages]
        if wrapped.repeatable(self.strategy) and not self.aggregate_only:
            made = self._once(server_round, sent.arrays, messages, replace(expected, finite=False), roster)
            if made.sound:
                return made
            for message, content in zip(messages, contents, strict=True):
                if content is not None:
                    message.content = content
            wrapped.remember(self.strategy, made.memory)
            wrapped.synchronize(self.strategy, sent.record)
        return self._once(server_round, sent.arrays, messages, expected, roster)

    def _once(
        self, server_round: int, before: Arrays, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        errors = [message for message in messages if message.has_error()]
        believed, rejected = sift((message for message in messages if not message.has_error()), expected)
        believed = roster.in_order(believed)
        believed, tried = self._near_the_best(believed, expected)
        nothing = Aggregate(RoundReport(refused=len(rejected)), believed, rejected, wrapped.memory(self.strategy))
        if not believed:
            return nothing
        layout = self.layout
        steps = wrapped.steps(self.strategy) and not self.aggregate_only
        readable = steps and wrapped.readable(self.strategy)
        # all of it now: FedMedian empties the replies it reads
        names = () if not steps else layout.statistics if readable else (*layout.trained, *layout.statistics)
        replies, weights = [reply.arrays for reply in believed], [reply.weight for reply in believed]
        raw = mean(replies, weights, names)
        counters = {} if self.aggregate_only else layout.largest(replies)
        sq_norm = self._sq_norm(before, believed)

        record, metrics = self.strategy.aggregate_train(server_round, [reply.message for reply in believed] + errors)
        nothing = nothing._replace(metrics=metrics)
        if record is None:  # it gave up, which is nobody's nonsense
            return nothing._replace(report=RoundReport())
        after = views(record)
        if not layout.accepts(after):
            return nothing._replace(report=RoundReport(refused=len(believed) + len(rejected)), sound=False)

        rows: list[Mapping[str, Any]] = [reply.metrics for reply in believed]
        if self.aggregate_only:
            rows, weights = [dict(metrics or {})], [1.0]
            counters = {name: after[name] for name in layout.counters}
        losses = self.losses.values(rows)
        if "sq_norm" in self.requires and sq_norm is None:
            sq_norm = reported(SQ_NORM, rows, weights)
        if readable:
            delta = {name: wrapped.read_back(self.strategy, nothing.memory, name) for name in layout.trained}
        else:
            delta = layout.delta(before, raw if steps else after)
        trained = {name: after[name] for name in layout.trained}
        statistics = {name: (raw if steps else after)[name] for name in layout.statistics}
        report = RoundReport(
            delta=delta,
            losses=losses,
            sq_norm=sq_norm,
            statistics=statistics or None,
            refused=len(rejected),
            votes=None if tried is None else tried.votes,
            tries=() if tried is None else tried.tries,
            aggregate=None if steps else trained,
            stepped=trained if steps else None,
        )
        train_loss = first_number(dict(metrics or {}), TRAIN_LOSS)
        return nothing._replace(
            report=report,
            counters=counters,
            came=Opened(record, after),
            train_loss=fmean(losses) if train_loss is None and losses else train_loss,
        )

    def _near_the_best(self, believed: list[NodeReply], expected: Expected) -> tuple[list[NodeReply], Tried | None]:
        """While clients try rates out: the replies whose rate was about the best, and the votes for it.

        Without a training loss nobody can tell: then those that were sent the lowest rate are used, and nobody votes.
        """
        rungs = expected.rungs
        asked = [reply for reply in believed if reply.node in rungs]
        if self.ladder is None or not asked:
            return believed, None
        means = [first_number(reply.metrics, TRAIN_LOSS) for reply in asked]
        known = [(reply, value) for reply, value in zip(asked, means, strict=True) if value is not None]
        if not known:
            lowest = min(rungs[reply.node] for reply in asked)
            return [reply for reply in asked if rungs[reply.node] == lowest], None
        firsts = [first_number(reply.metrics, (LOSS,)) for reply, _ in known]
        tried = self.ladder.weigh(
            [rungs[reply.node] for reply, _ in known],
            [value for _, value in known],
            None if None in firsts else firsts,  # type: ignore[arg-type]
            expected.tries,
        )
        return [reply for i, (reply, _) in enumerate(known) if i in tried.used], tried

    def _sq_norm(self, before: Arrays, believed: list[NodeReply]) -> float | None:
        """Σ p_m |Δ_m|², which auto and FedExP read; None where clients report it, or replies are masked."""
        if "sq_norm" not in self.requires:
            return math.nan  # nobody reads it, and None would have it measured
        if self.aggregate_only or all(SQ_NORM in reply.metrics for reply in believed):
            return None
        total = sum(reply.weight for reply in believed)
        distances = sq_distances(before, [reply.arrays for reply in believed], self.layout.trained)
        return sum(reply.weight / total * squared for reply, squared in zip(believed, distances, strict=True))
