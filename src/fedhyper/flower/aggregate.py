"""From the replies that are believed to a report for the server loop, through the inner strategy.

An inner strategy that aggregates (FedAvg, FedMedian, Krum) gives w − Δ. One that makes a step of its own (FedAvgM,
FedAdam, FedAdagrad, FedYogi) gives the stepped weights, and Δ is read from what it remembers, or summed up here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median_low
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedhyper.automatic.ladder import Ladder
from fedhyper.flower.inner import nesting, stepping
from fedhyper.flower.losses import Losses, first_number, reported, sq_distances
from fedhyper.flower.nodes import Roster
from fedhyper.flower.records.layout import Arrays, Layout, Opened, mean, views
from fedhyper.flower.records.replies import Expected, NodeReply, Refusal, sift
from fedhyper.flower.wire import GAIN, LOSS, SQ_NORM, USED_LR, VOTE
from fedhyper.loop import RoundReport

_FAR, _ALIKE = 1e3, 3.0  # factors between rates and between lengths of updates: no client that heard is near either


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
    unheard     clients were sent rates far apart, and moved as far at a low one as at a high one
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
    unheard: bool = False


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

    @property
    def sees_delta(self) -> bool:
        """Whether the clients' own mean is looked at where the inner strategy makes a step of it. Otherwise that step,
        which is all that comes out of secure aggregation, and has the noise in it, is what there is to see."""
        hidden = self.aggregate_only or ("losses" not in self.requires and nesting.private(self.strategy))
        return not hidden

    def __call__(
        self, server_round: int, sent: Opened, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        """Everything of one round. ``sent`` is what clients were sent; ``roster`` gives the order of replies.

        Flower's own mean is finite only if every number in it is: its replies are looked into only if it is not, or if
        not all of them are in it, because clients try rates out.
        """
        contents = [message.content if message.has_content() else None for message in messages]
        if stepping.repeatable(self.strategy) and not self.aggregate_only and not expected.rungs:
            made = self._once(server_round, sent.arrays, messages, replace(expected, finite=False), roster)
            if made.sound:
                return made
            for message, content in zip(messages, contents, strict=True):
                if content is not None:
                    message.content = content
            stepping.remember(self.strategy, made.memory)
            stepping.synchronize(self.strategy, sent.record)
        return self._once(server_round, sent.arrays, messages, expected, roster)

    def _once(
        self, server_round: int, before: Arrays, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        errors = [message for message in messages if message.has_error()]
        believed, rejected = sift((message for message in messages if not message.has_error()), expected)
        believed = roster.in_order(believed)
        climbers = self._climbers(believed) if expected.climbs else []
        unheard = not climbers and self._unheard(before, believed, expected.rungs)
        votes: tuple[tuple[int, float], ...] | None = None
        if climbers:
            believed, votes = climbers, tuple((int(r.metrics[VOTE]), float(r.metrics[GAIN])) for r in climbers)  # type: ignore[arg-type]
        elif not unheard:
            believed, votes = self._near_the_best(believed, expected.rungs)
        memory = stepping.memory(self.strategy)
        nothing = Aggregate(RoundReport(refused=len(rejected)), believed, rejected, memory, unheard=unheard)
        if not believed:
            return nothing
        layout = self.layout
        steps = stepping.steps(self.strategy)
        looked_into = steps and self.sees_delta
        readable = looked_into and stepping.readable(self.strategy)
        # all of it now: FedMedian empties the replies it reads
        names = () if not looked_into else layout.statistics if readable else (*layout.trained, *layout.statistics)
        replies, weights = [reply.arrays for reply in believed], [reply.weight for reply in believed]
        raw = mean(replies, weights, names)
        counters = {} if self.aggregate_only else layout.largest(replies)
        sq_norm = self._sq_norm(before, believed)

        passed = [reply.message for reply in believed]
        if not nesting.private(self.strategy):  # they leave a whole round out for one that failed
            passed += errors
        with nesting.noise_for(self.strategy, len(believed)):
            record, metrics = nesting.own(self.strategy, "aggregate_train")(server_round, passed)
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
            delta = {name: stepping.read_back(self.strategy, nothing.memory, name) for name in layout.trained}
        else:
            delta = layout.delta(before, raw if looked_into else after)
        trained = {name: after[name] for name in layout.trained}
        statistics = {name: (raw if looked_into else after)[name] for name in layout.statistics}
        report = RoundReport(
            delta=delta,
            losses=losses,
            sq_norm=sq_norm,
            statistics=statistics or None,
            refused=len(rejected),
            votes=votes,
            climbed=bool(climbers),
            aggregate=None if steps else trained,
            stepped=trained if steps else None,
        )
        train_loss = self.losses.train_loss(dict(metrics or {}))
        known = [loss for loss in losses if math.isfinite(loss)]
        return nothing._replace(
            report=report,
            counters=counters,
            came=Opened(record, after),
            train_loss=fmean(known) if train_loss is None and known else train_loss,
        )

    @staticmethod
    def _climbers(believed: list[NodeReply]) -> list[NodeReply]:
        """Those that tried several rates by themselves and answer with the best, if they are more than half."""
        found = [
            reply
            for reply in believed
            if isinstance(reply.metrics.get(VOTE), int) and isinstance(reply.metrics.get(GAIN), (int, float))
        ]
        return found if 2 * len(found) > len(believed) else []

    def _near_the_best(
        self, believed: list[NodeReply], rungs: Mapping[int, int]
    ) -> tuple[list[NodeReply], tuple[tuple[int, float], ...] | None]:
        """While clients try rates out: the replies whose rate was about the best, and the votes for it.

        Without a training loss nobody can tell: then those that were sent the lowest rate are used, and nobody votes.
        """
        asked = [reply for reply in believed if reply.node in rungs]
        if self.ladder is None or not asked:
            return believed, None
        means = [self.losses.train_loss(reply.metrics) for reply in asked]
        known = [(reply, value) for reply, value in zip(asked, means, strict=True) if value is not None]
        if not known:
            lowest = min(rungs[reply.node] for reply in asked)
            return [reply for reply in asked if rungs[reply.node] == lowest], None
        firsts = [first_number(reply.metrics, (LOSS,)) for reply, _ in known]
        tried = self.ladder.weigh(
            [rungs[reply.node] for reply, _ in known],
            [value for _, value in known],
            None if None in firsts else firsts,  # type: ignore[arg-type]
        )
        return [reply for i, (reply, _) in enumerate(known) if i in tried.used], tried.votes

    def _unheard(self, before: Arrays, believed: list[NodeReply], rungs: Mapping[int, int]) -> bool:
        """Whether rates far apart made no difference to how far clients moved, by medians: one client cannot say so."""
        quiet = [reply for reply in believed if reply.node in rungs and USED_LR not in reply.metrics]
        asked = sorted(quiet, key=lambda reply: rungs[reply.node])
        third = max(1, len(asked) // 3)
        ends = (asked[:third], asked[-third:])
        low, high = (median_low([rungs[reply.node] for reply in some]) for some in ends if some) if asked else (0, 0)
        if self.ladder is None or self.ladder.rate(high - low) < _FAR:
            return False
        moved = [sq_distances(before, [reply.arrays for reply in some], self.layout.trained) for some in ends]
        return 0 < median_low(moved[1]) < _ALIKE**2 * median_low(moved[0])

    def _sq_norm(self, before: Arrays, believed: list[NodeReply]) -> float | None:
        """Σ p_m |Δ_m|², which auto and FedExP read; None where clients report it, or replies are masked."""
        if "sq_norm" not in self.requires:
            return math.nan  # nobody reads it, and None would have it measured
        if self.aggregate_only or all(SQ_NORM in reply.metrics for reply in believed):
            return None
        total = sum(reply.weight for reply in believed)
        distances = sq_distances(before, [reply.arrays for reply in believed], self.layout.trained)
        return sum(reply.weight / total * squared for reply, squared in zip(believed, distances, strict=True))
