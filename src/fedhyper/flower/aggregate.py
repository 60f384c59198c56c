"""From the replies that are believed to a report for the server loop, through the inner strategy.

An inner strategy that aggregates (FedMedian, Krum) gives w − Δ; Flower's plain mean is made here, where the replies are
open already, to the same bits. One that makes a step of its own (FedAvgM, FedAdam, FedAdagrad, FedYogi) gives the
stepped weights, and Δ is read from what it remembers, or summed up here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median_low
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedhyper.automatic.ladder import LOWEST, Ladder
from fedhyper.automatic.tries import LOST, Tries, gains_of, untold
from fedhyper.flower.inner import nesting, stepping
from fedhyper.flower.losses import Losses, first_number, used_lr
from fedhyper.flower.nodes import Roster
from fedhyper.flower.records.fair import alike, mean_sq_norm, weigh
from fedhyper.flower.records.layout import Arrays, Layout, Opened, views
from fedhyper.flower.records.replies import Expected, NodeReply, Refusal, sift, strip
from fedhyper.flower.records.sums import mean
from fedhyper.flower.wire import GAIN, LOSS, SQ_NORM, USED_LR, VOTE, VOTES
from fedhyper.loop import RoundReport

_FAR, _ALIKE = 1e3, 3.0  # factors between rates and between lengths of updates: no client that heard is near either


class Aggregate(NamedTuple):
    """What came of a round's replies.

    report      for the server loop
    believed    the replies in it
    rejected    the replies that were refused, and why
    memory      what the inner strategy remembered before this round
    counters    integer arrays: the lower median of the clients'
    came        the inner strategy's result, as it came; None: the mean was made here
    metrics     the inner strategy's means of the clients' metrics
    train_loss  the clients' mean training loss, or the loss that schedules read; None: nobody reports one
    unheard     clients were sent rates far apart, and moved as far at a low one as at a high one
    untold      the losses tell no rate from another, and the run is too short to wait: the app's own is used
    """

    report: RoundReport
    believed: list[NodeReply]
    rejected: list[Refusal]
    memory: dict[str, Any]
    counters: Arrays = {}  # noqa: RUF012  never written to
    came: Opened | None = None
    metrics: MetricRecord | None = None
    train_loss: float | None = None
    unheard: bool = False
    untold: bool = False


@dataclass(frozen=True)
class Aggregator:
    """How the replies of a run are put together.

    requires        what the plan reads, see ``Plan.requires``
    aggregate_only  the replies are masked: the inner strategy's result is all there is to see
    own_steps       whether the plan makes steps of Δ that are not Δ itself
    norm_cap        strongest pull of one reply, in medians of the round; 0: whatever it is
    ladder          how clients try rates out; None: they never do
    """

    strategy: Strategy
    layout: Layout
    requires: frozenset[str]
    losses: Losses
    aggregate_only: bool
    own_steps: bool
    norm_cap: float
    ladder: Ladder | None = None

    @property
    def sees_delta(self) -> bool:
        """Whether the clients' own mean is looked at where the inner strategy makes a step of it. Otherwise that step,
        which is all that comes out of secure aggregation, and has the noise in it, is what there is to see."""
        hidden = self.aggregate_only or ("losses" not in self.requires and nesting.private(self.strategy))
        return not hidden

    @property
    def _caps(self) -> bool:
        """Whether replies are judged beside each other. Noise is made for a mean in which they are not."""
        return self.norm_cap > 0 and not self.aggregate_only and not nesting.private(self.strategy)

    def __call__(
        self, server_round: int, before: Arrays, messages: list[Message], expected: Expected, roster: Roster
    ) -> Aggregate:
        """Everything of one round. ``before`` is what clients were sent; ``roster`` gives the order of replies."""
        # in their order already here: what is measured together has the bits of that order
        messages = sorted(messages, key=lambda message: roster.position(message.metadata.src_node_id))
        errors = [message for message in messages if message.has_error()]
        answers = (message for message in messages if not message.has_error())
        believed, rejected = sift(answers, expected, before, directions=self._caps)
        believed = answered = roster.in_order(believed)
        heard: list[Mapping[str, Any]] = [reply.metrics for reply in believed]
        expected = replace(expected, rungs=self._as_used(believed, expected.rungs))
        climbers = self._climbers(believed) if expected.climbs and not self.aggregate_only else []
        unheard = not climbers and self._unheard(believed, expected.rungs)
        votes: tuple[tuple[int, float], ...] | None = None
        at_lr = None  # the rate that updates at several are made one of
        if climbers:
            believed, votes = climbers, tuple((int(r.metrics[VOTE]), float(r.metrics[GAIN])) for r in climbers)  # type: ignore[arg-type]
        elif not unheard:
            believed, votes, at_lr = self._near_the_best(believed, rejected, expected)
        memory, is_untold = stepping.memory(self.strategy), at_lr is not None and votes is None
        # of everybody who answered, also where few are used: these were chosen for their low losses, and a median of
        # them would have the next round's look like damage
        losses = self.losses.values(heard)
        trying = votes is not None and not climbers
        if trying and self.losses.key != LOSS:  # these trained, at rates of their own: only who hardly moved can say
            losses = () if expected.tried else self._of_the_lowest(expected.rungs, answered)
        told = RoundReport(losses=losses, votes=votes, enough=expected.enough) if trying else None
        refused = sum(one.diverged for one in rejected)
        report = told or RoundReport(refused=refused)
        nothing = Aggregate(report, believed, rejected, memory, unheard=unheard, untold=is_untold)
        if told is not None and self._waits(expected, votes or ()):
            known = [loss for loss in losses if math.isfinite(loss)]
            return nothing._replace(believed=[], train_loss=fmean(known) if known else None)
        if not believed:
            return nothing
        layout, (believed, measured) = self.layout, self._weighed(believed, before)
        steps, plain = stepping.steps(self.strategy), stepping.averages(self.strategy) and not self.aggregate_only
        looked_into = (steps and self.sees_delta) or plain
        readable = looked_into and stepping.readable(self.strategy)
        # all of it now: FedMedian empties the replies it reads
        names = () if not looked_into else layout.statistics if readable else (*layout.trained, *layout.statistics)
        replies, weights = [reply.arrays for reply in believed], [reply.weight for reply in believed]
        # a plan that compares with its own steps makes them of Δ: nobody asks for the mean itself
        at_once = plain and not steps and self.own_steps
        measured = measured if at_once else None
        raw = mean(replies, weights, layout.statistics if at_once else names)
        # of everybody, too: of one whose rate was the best there is no middle
        counters = {} if self.aggregate_only else layout.middle([reply.arrays for reply in answered])

        passed = [reply.message for reply in believed]
        if not self.aggregate_only:  # of a mean that is made already the strategy still says what came, and the metrics
            shown, key = () if plain else layout.shapes, expected.weight_key
            passed = [strip(reply, shown, key, read_only=readable) for reply in believed]
        if not nesting.private(self.strategy):  # they leave a whole round out for one that failed
            passed += errors
        with nesting.noise_for(self.strategy, len(believed)):
            record, metrics = nesting.own(self.strategy, "aggregate_train")(server_round, passed)
        metrics, counted = self._counted(metrics, len(believed), expected)
        nothing = nothing._replace(metrics=metrics)
        if record is None:  # it gave up, which is nobody's nonsense
            return nothing._replace(report=told or RoundReport())  # what rates did is known all the same
        after = raw if plain else views(record)
        if not plain and not layout.accepts(after):
            return nothing._replace(report=RoundReport(refused=len(believed) + refused))

        if self.aggregate_only:
            averaged = dict(metrics or {})
            heard = [averaged]
            # what one of them says is as masked as its update
            nothing = nothing._replace(believed=[reply._replace(metrics=averaged) for reply in believed])
            counters = {name: after[name] for name in layout.counters}
            losses = self.losses.values(heard)
        if at_once:
            delta = mean(replies, weights, layout.trained, before) if measured is None else measured
            stretch = 1.0 if at_lr is None else self._stretch(believed, expected.rungs, at_lr)
            for array in delta.values() if stretch > 1 else ():
                array *= stretch
        elif readable:
            delta = {name: stepping.read_back(self.strategy, nothing.memory, name) for name in layout.trained}
        else:
            delta = layout.delta(before, raw if looked_into else after)
        trained = None if at_once else {name: after[name] for name in layout.trained}
        statistics = {name: (raw if looked_into else after)[name] for name in layout.statistics}
        report = RoundReport(
            delta=delta,
            losses=losses,
            sq_norm=self._sq_norm(believed, heard[0]),
            statistics=statistics or None,
            refused=refused,
            votes=votes if counted is None else counted,
            climbed=bool(climbers) or is_untold or counted is not None,
            aggregate=None if steps else trained,
            stepped=trained if steps else None,
            enough=expected.enough,
        )
        train_loss = self.losses.train_loss(dict(metrics or {}))
        known = [loss for loss in losses if math.isfinite(loss)]
        return nothing._replace(
            report=report,
            counters=counters,
            came=None if plain else Opened(record, after),
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

    def _counted(
        self, metrics: MetricRecord | None, clients: int, expected: Expected
    ) -> tuple[MetricRecord | None, tuple[tuple[int, float], ...] | None]:
        """The means of masked clients' metrics without their votes, and these; None: there are none of that kind."""
        shares = None if metrics is None else metrics.get(VOTES)
        if self.ladder is None or metrics is None or not (self.aggregate_only and isinstance(shares, list)):
            return metrics, None
        others = MetricRecord({key: value for key, value in metrics.items() if key != VOTES})
        # what they gained is not told; votes that nobody asked for any more are not counted
        votes = tuple((rung, 0.0) for rung in self.ladder.counted(shares, clients))
        return others, votes if expected.climbs else None

    def _as_used(self, believed: list[NodeReply], rungs: Mapping[int, int]) -> Mapping[int, int]:
        """The rungs that clients trained at: where one says that it used another rate than it was sent, as one does
        that climbed, its own, if it lies between those that were sent. A liar's far beyond would have no neighbours."""
        if self.ladder is None or not rungs:
            return rungs
        low, high = min(rungs.values()), max(rungs.values())
        said = {reply.node: self.ladder.rung(rate) for reply in believed if (rate := used_lr(reply.metrics))}
        return {node: said[node] if low <= said.get(node, low - 1) <= high else rung for node, rung in rungs.items()}

    def _near_the_best(
        self, believed: list[NodeReply], rejected: list[Refusal], expected: Expected
    ) -> tuple[list[NodeReply], tuple[tuple[int, float], ...] | None, float | None]:
        """While clients try rates out: the replies whose rate was about the best, the votes for it, and the rate that
        these updates are to be made one of (None: none; they are averaged as they are).

        Unless more than half report a training loss nobody can tell: then the three that were sent the lowest rates are
        used, and nobody votes. Three, because one alone would be the median that its pull is measured by.
        """
        rungs = expected.rungs
        asked = [reply for reply in believed if reply.node in rungs]
        lost = _lost(rejected, rungs, max((rungs[reply.node] for reply in asked), default=LOWEST - 1))
        if self.ladder is None or not (asked or lost):
            return believed, None, None
        if not asked:
            return [], lost, None
        means = [self.losses.train_loss(reply.metrics) for reply in asked]
        known = [(reply, value) for reply, value in zip(asked, means, strict=True) if value is not None]
        if 2 * len(known) <= len(asked):
            lowest = sorted(asked, key=lambda reply: rungs[reply.node])
            return lowest[: 3 if len(asked) > 2 else 1], None, None
        before = [first_number(reply.metrics, (LOSS,)) for reply, _ in known]
        tried = [rungs[reply.node] for reply, _ in known]
        gains = gains_of(tried, [value for _, value in known], before, expected.first)
        if expected.own_lr is not None and (own := untold(self.ladder, tried, gains, expected.own_lr)):
            return [reply for i, (reply, _) in enumerate(known) if i in own], None, expected.own_lr
        votes = (*zip(tried, gains, strict=True), *lost)
        short = expected.enough and not expected.tried
        found = Tries(self.ladder, (*expected.tried, *votes), short=short).used(tried, gains)
        used = [reply for i, (reply, _) in enumerate(known) if i in found]
        best = self.ladder.rate(max(rungs[reply.node] for reply in used)) if used and expected.hurried else None
        return used, votes, best

    def _waits(self, expected: Expected, votes: tuple[tuple[int, float], ...]) -> bool:
        """Whether clients go on trying, so that no update is used; the plan decides the same by the same."""
        if self.ladder is None or expected.enough:
            return False
        return not Tries(self.ladder, (*expected.tried, *votes)).done

    def _of_the_lowest(self, rungs: Mapping[int, int], answered: list[NodeReply]) -> tuple[float, ...]:
        """The losses of those at the lowest third of the rungs, who have hardly moved."""
        most = min(rungs.values()) + (max(rungs.values()) - min(rungs.values())) // 3
        return self.losses.values([reply.metrics for reply in answered if rungs.get(reply.node, most + 1) <= most])

    def _stretch(self, believed: list[NodeReply], rungs: Mapping[int, int], at_lr: float) -> float:
        """What makes a mean of updates at several rates one at ``at_lr``, β: β · Σ p_m Δ_m / Σ p_m β_m.

        A client at a tenth of the rate moves a tenth as far, and in a plain mean with it the best is halved: prudent on
        the word of one or two clients, where many rounds follow, and half of what a run of three rounds can do.
        """
        if self.ladder is None or not all(reply.node in rungs for reply in believed):
            return 1.0
        rates = [self.ladder.rate(rungs[reply.node]) for reply in believed]
        weights = [reply.weight for reply in believed]
        return at_lr * sum(weights) / sum(rate * weight for rate, weight in zip(rates, weights, strict=True))

    def _weighed(self, believed: list[NodeReply], before: Arrays) -> tuple[list[NodeReply], Arrays | None]:
        """The replies with the weights that they may have, and their Δ_t, should it be known by then."""
        if not self.aggregate_only and nesting.private(self.strategy):
            return alike(believed, nesting.clipped_to(self.strategy)), None
        return weigh(believed, self.norm_cap if self._caps else 0.0, before, self.layout.trained)

    def _unheard(self, believed: list[NodeReply], rungs: Mapping[int, int]) -> bool:
        """Whether rates far apart made no difference to how far clients moved. One client cannot say so: of nine or
        more it moves no median of a third, and of fewer it must look so whoever is left out."""
        quiet = [reply for reply in believed if reply.node in rungs and USED_LR not in reply.metrics]
        asked = sorted(quiet, key=lambda reply: rungs[reply.node])
        few = [asked[:i] + asked[i + 1 :] for i in range(len(asked))] if len(asked) < 9 else [asked]
        return bool(asked) and all(self._as_far_at_any_rate(some, rungs) for some in few)

    def _as_far_at_any_rate(self, asked: list[NodeReply], rungs: Mapping[int, int]) -> bool:
        """By medians of the third at the lowest rates and of the third at the highest."""
        third = max(1, len(asked) // 3)
        ends = (asked[:third], asked[-third:])
        low, high = (median_low([rungs[reply.node] for reply in some]) for some in ends if some) if asked else (0, 0)
        if self.ladder is None or self.ladder.rate(high - low) < _FAR:
            return False
        moved = [median_low([reply.sq_norm for reply in some]) for some in ends]
        return 0 < moved[1] < _ALIKE**2 * moved[0]

    def _sq_norm(self, believed: list[NodeReply], averaged: Mapping[str, Any]) -> float | None:
        """Σ p_m |Δ_m|², which FedExP reads; of masked replies what clients report of it on average."""
        if "sq_norm" not in self.requires:
            return math.nan  # nobody reads it, and None would have it measured
        if not self.aggregate_only:
            return mean_sq_norm(believed, self.norm_cap)
        said = first_number(averaged, (SQ_NORM,))
        return said if said is not None and 0 <= said < math.inf else None


def _lost(rejected: list[Refusal], rungs: Mapping[int, int], highest: int) -> tuple[tuple[int, float], ...]:
    """The votes of clients that diverged at rungs above the ``highest`` at which somebody did not: their rates are not
    tried again. Below it a client that says so is an odd one, or a liar, and has no vote. The higher, the worse: where
    all are lost, what is looked at next lies below the lowest."""
    found = [rungs[one.node] for one in rejected if one.diverged and one.node in rungs]
    return tuple((rung, -LOST * (1 + rung - LOWEST)) for rung in found if rung > highest)
