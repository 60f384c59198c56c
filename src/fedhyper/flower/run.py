"""One run: the server loop, its state, and the state as Flower's records and as a checkpoint file.

The loop works on named arrays in whatever precision its arithmetic gives; what is sent has the model's own types. So
after every round the arrays that are really sent are put back into the state. Counters are no part of the loop.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedhyper.averages import Model
from fedhyper.errors import CheckpointRefused
from fedhyper.flower import wrapped
from fedhyper.flower.aggregate import Aggregate, Aggregator
from fedhyper.flower.gram import InCoordinates
from fedhyper.flower.layout import Arrays, Layout, Trainable, views
from fedhyper.flower.losses import Losses
from fedhyper.flower.schedules import Schedule, make_schedule
from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
from fedhyper.plan import Plan
from fedhyper.storage import checkpoint
from fedhyper.storage.checkpoint import from_plain, to_plain
from fedhyper.storage.record import RoundRecord

_KIND = "flower"


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
    ) -> None:
        self.strategy = strategy
        self.layout = Layout.of(arrays, trainable)
        self.plan, self.client_rule = make_schedule(schedule, local_lr=local_lr, global_lr=global_lr)
        shown: Plan = InCoordinates(self.plan) if self.plan.products_only else self.plan
        self.loop = ServerLoop(shown, None if aggregate_only else wrapped.optimizer(strategy))
        self.losses = Losses()
        self.aggregator = Aggregator(
            strategy, self.layout, self.plan.requires, self.losses, aggregate_only, self.plan.ladder
        )
        model = self.layout.model(views(arrays))
        self.state: LoopState = self.loop.init(model.weights, model.statistics)
        self.offset = 0  # rounds that an earlier life of this run has done: Flower counts from 1 in each
        self._mean: tuple[Model, ArrayRecord] | None = None
        wrapped.remember(strategy, {})
        self.send(arrays)

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
            self._mean = mean, self.layout.packed(mean, self.counters) or arrays
        return self._mean[1]

    def decide(self, made: Aggregate) -> Decision:
        """Let the server loop act on a round. The inner strategy's memory goes back with the weights, or is lost."""
        with np.errstate(over="ignore", invalid="ignore"):
            state, decision = self.loop.update(self.state, made.report)
        record = None
        if decision.action != "idle":
            counters = made.counters if decision.action == "step" else self.counters
            record = self.layout.packed(state.now, counters, made.came)
            if record is None:  # finite, but not in the model's own type
                refused = len(made.believed) + len(made.rejected)
                state, decision = self.loop.update(self.state, RoundReport(refused=refused))
        self.state = state
        if record is not None:
            self.send(record)
        if decision.action == "idle":
            wrapped.remember(self.strategy, made.memory)
        if decision.forget:
            wrapped.remember(self.strategy, {})
        return decision

    def renumber(self, result: Result) -> None:
        """Flower counts a resumed run's rounds from 1; give its metrics their true numbers."""
        evaluated = (result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp)
        for metrics in (result.train_metrics_clientapp, *evaluated):
            shifted = {server_round + self.offset: value for server_round, value in metrics.items()}
            metrics.clear()
            metrics.update(shifted)

    # --- as a file ---------------------------------------------------------------------------------------------------

    def save(self, path: Path, history: list[RoundRecord], identity: dict[str, Any]) -> None:
        """Replace ``path`` by this state. ``identity`` is what a run must agree on to go on from it."""
        tensors: dict[str, NDArray[Any]] = {}
        values = {
            "kind": _KIND,
            "identity": identity | self._identity(),
            "round": self.state.round,
            "loop": to_plain(self.state, tensors, "loop"),
            "counters": to_plain(self.counters, tensors, "counters"),
            "memory": to_plain(wrapped.memory(self.strategy), tensors, "memory"),
            "loss_key": self.losses.key,
            "history": history,
        }
        checkpoint.save(path, tensors, values)

    def resume(self, path: Path, identity: dict[str, Any]) -> list[RoundRecord]:
        """Go on from ``path``; the history comes back. CheckpointRefused names the first setting that differs."""
        tensors, values = checkpoint.load(path)
        if values.get("kind") != _KIND:
            raise CheckpointRefused(f"{path}: not the checkpoint of a Flower run")
        theirs = values.get("identity", {})
        for key, value in (identity | self._identity()).items():
            if theirs.get(key) != value:
                raise CheckpointRefused(f"{path}: {key} was {_short(theirs.get(key))} and now is {_short(value)}")
        try:
            state: LoopState = from_plain(values["loop"], tensors, self.state)
            rates = (state.plan.global_lr, state.plan.local_lr)
            if not all(math.isfinite(rate) and rate > 0 for rate in rates):
                raise ValueError(f"the rates are {rates}")
            counters: Arrays = from_plain(values["counters"], tensors)
            record = self.layout.packed(state.now, counters)
            if record is None or self.layout.mismatch(views(record)):
                raise ValueError("its arrays are not the model's")
            memory, self.losses.key = from_plain(values["memory"], tensors), values["loss_key"]
            history = list(values["history"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointRefused(f"{path}: the checkpoint's content is not a run's state: {error}") from error
        self.state, self.offset = state, state.round
        self.send(record)
        wrapped.remember(self.strategy, memory)
        return history

    def _identity(self) -> dict[str, Any]:
        layout = self.layout
        return {
            "schedule": repr((self.plan, self.client_rule)),
            "strategy": type(self.strategy).__name__,
            "arrays": {name: [str(layout.dtypes[name]), *shape] for name, shape in layout.shapes.items()},
            "trained": list(layout.trained),
        }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
