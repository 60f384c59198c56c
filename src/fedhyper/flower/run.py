"""One run: the server loop, its state, and the state as Flower's records.

The loop works on named arrays in whatever precision its arithmetic gives; what is sent has the model's own types. So
after every round the arrays that are really sent are put back into the state. Counters are no part of the loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from fedhyper.averages import Model
from fedhyper.flower import last_good
from fedhyper.flower.aggregate import Aggregate, Aggregator
from fedhyper.flower.gram import InCoordinates
from fedhyper.flower.inner import stepping
from fedhyper.flower.losses import Losses
from fedhyper.flower.private import PrivateAggregator, Terms
from fedhyper.flower.records.layout import Arrays, Layout, Trainable, views
from fedhyper.flower.schedules import Schedule, make_schedule
from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
from fedhyper.plan import Plan

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Tell = Callable[[int, MetricRecord | None], None]


class Run:
    """A run from its first arrays on. ``state`` is the server loop's, ``record`` what is sent next."""

    def __init__(
        self,
        strategy: Strategy,
        schedule: Schedule,
        arrays: ArrayRecord,
        *,
        local_lr: float,
        global_lr: float,
        trainable: Trainable,
        aggregate_only: bool,
        norm_cap: float,
        loss_key: str | None = None,
        private: Terms | None = None,
    ) -> None:
        self.strategy, self.norm_cap = strategy, norm_cap
        self.layout = Layout.of(arrays, trainable)
        self.plan, self.client_rule = make_schedule(schedule, local_lr=local_lr, global_lr=global_lr)
        shown: Plan = InCoordinates(self.plan) if self.plan.products_only else self.plan
        self.losses = Losses(loss_key)
        own_steps = self.plan.compares == "step"
        through = Aggregator(
            strategy,
            self.layout,
            self.plan.requires,
            self.losses,
            aggregate_only,
            own_steps,
            norm_cap if private is None else 0.0,  # medians of a round would let one client change what others weigh
            self.plan.ladder,
        )
        self.private = None if private is None else PrivateAggregator(through, private)
        self.aggregator: Aggregator | PrivateAggregator = self.private or through
        self.loop = ServerLoop(shown, stepping.optimizer(strategy, seen=through.sees_delta))
        self._undoable = own_steps and self.loop.optimizer is None  # the last step is held, and is what was subtracted
        model = self.layout.model(views(arrays))
        self.state: LoopState = self.loop.init(model.weights, model.statistics)
        self.heard = True  # as far as is known, clients use the rate that they are sent
        self.offset = 0  # rounds that an earlier life of this run has done: Flower counts from 1 in each
        self._mean: tuple[Model, ArrayRecord] | None = None
        stepping.remember(strategy, {})
        self.send(arrays)

    def replace(self, record: ArrayRecord) -> None:
        """Send other arrays next than those this run arrived at."""
        self.state = last_good.unfold(self.state)
        self.send(record)

    def send(self, record: ArrayRecord) -> None:
        """Take these for the arrays that are sent next."""
        opened = views(record)
        self.record, self.counters = record, {name: opened[name] for name in self.layout.counters}
        now, state = self.layout.model(opened), self.state
        self.state = state._replace(now=now, mean=now if state.mean is state.now else state.mean)

    def kept(self, arrays: ArrayRecord) -> ArrayRecord:
        """What is evaluated and returned: ``arrays``, or the loop's mean of the last rounds in their types."""
        mean = self.state.mean
        if mean is self.state.now:
            return arrays
        if self._mean is None or self._mean[0] is not mean:
            record = self.layout.packed(mean, self.counters) or arrays
            if record is not arrays and not self._is_wider(mean):  # the same numbers: once in memory is enough
                mean = self.layout.model(views(record))
                self.state = self.state._replace(mean=mean)
            self._mean = mean, record
        return self._mean[1]

    @property
    def sent(self) -> Arrays:
        """What clients of this round begin with; counters, which have no length, left out."""
        return {**self.state.now.weights, **(self.state.now.statistics or {})}

    def evaluating(self, evaluate_fn: EvaluateFn | None, tell: Tell) -> EvaluateFn | None:
        """The app's ``evaluate_fn``, on the weights that are kept, by the true round; ``tell`` hears what it finds."""
        if evaluate_fn is None:
            return None

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate_fn(server_round + self.offset, self.kept(arrays))
            tell(server_round + self.offset, metrics)
            return metrics

        return evaluate

    def _is_wider(self, model: Model) -> bool:
        held = {**model.weights, **(model.statistics or {})}
        return any(array.dtype != self.layout.dtypes[name] for name, array in held.items())

    def decide(self, made: Aggregate) -> Decision:
        """Let the server loop act on a round. The inner strategy's memory goes back with the weights, or is lost."""
        record, too_long = None, RoundReport(refused=len(made.believed) + len(made.rejected))
        for report in (made.report, too_long):  # the second: a step that is finite, but not in the model's own type
            with np.errstate(over="ignore", invalid="ignore"):
                state, decision = self.loop.update(self.state, report)
            state = last_good.carried(state, self.state)
            if decision.action == "idle":
                break
            counters = made.counters if decision.action == "step" else self.counters
            record = self.layout.packed(state.now, counters, made.came)
            if record is not None:
                break
        if self._undoable and decision.action == "step" and decision.global_lr == 1:
            state = last_good.fold(state, self.state)
        self.state = state
        if record is not None:
            self.send(record)
        if decision.action == "idle":
            stepping.remember(self.strategy, made.memory)
        if decision.forget:
            stepping.remember(self.strategy, {})
        return decision

    def renumber(self, result: Result) -> None:
        """Flower counts a resumed run's rounds from 1; give its metrics their true numbers."""
        evaluated = (result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp)
        for metrics in (result.train_metrics_clientapp, *evaluated):
            shifted = {server_round + self.offset: value for server_round, value in metrics.items()}
            metrics.clear()
            metrics.update(shifted)
