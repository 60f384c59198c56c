"""``FedHyper``: a Flower strategy around a Flower strategy, which sets both learning rates while training runs.

    strategy = FedHyper(FedAvg(fraction_train=0.5))
    result = strategy.start(grid, initial_arrays, num_rounds=50)

Each round: replies that cannot be believed are refused by name; the inner strategy aggregates the rest; Δ = before −
after over the trained arrays gives the two rates; w − α · direction is sent next, with the local rate in the config
entries ``local-lr`` and ``lr``. Under auto the direction has momentum in it unless the inner strategy has its own way,
and a mean of the last few rounds' weights is evaluated and returned. NumPy is all the server needs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedhyper.automatic.auto import Auto, Grafted
from fedhyper.errors import TrainingStopped, UserError
from fedhyper.flower import gram
from fedhyper.flower import wrapped as known
from fedhyper.flower.averaging import averaged, moved
from fedhyper.flower.checkpointing import Saved, load, save
from fedhyper.flower.layout import Arrays, Layout, Trainable, Vector, mean, pack, views
from fedhyper.flower.losses import SQ_NORM, Losses, reported
from fedhyper.flower.nodes import OrderedGrid, Roster, seeded
from fedhyper.flower.replies import PREFIX, Expected, Refusal, Reply, sift
from fedhyper.flower.schedules import Schedule, make_schedule
from fedhyper.schedulers import FedHyperCL

CLIENT = f"{PREFIX}client"  # ConfigRecord: the rule clients run each step (FedHyper-CL)
DELTA = f"{PREFIX}delta"  # ArrayRecord: Δ_t-1, for CL's global term
LOCAL_LR = "local-lr"

_log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FedHyper(Strategy):
    """Wrap ``strategy`` so that the learning rates set themselves.

    schedule        "auto" (no rate to choose), "g", "sl", "cl", "g+sl", "g+cl", "constant"; rule objects; or a plan
    local_lr        initial local rate; None: the train_config's ``lr_key``, or 0.01
    global_lr       initial global rate, which multiplies the inner strategy's step
    lr_key          the train_config entry that clients already take their rate from; set every round
    seed            sample nodes by partition id from this seed, so that a run can be repeated; None: as Flower does
    nodes           wait for this many before the first round; None: with a seed, the number they report themselves
    trainable       names or predicate of what is trained; default: floats that are no BatchNorm statistic
    checkpoint      a file to replace after every round, from which ``start(resume=True)`` goes on
    send_delta      how CL's clients learn the last aggregate: "full", "half" (float16), or "cached" by themselves
    weight_cap      no reply counts more than this × the median weight; None: as claimed
    aggregate_only  the replies are masked (secure aggregation): look at the inner strategy's result alone
    patience        stop after this many rounds in a row without a usable reply
    """

    def __init__(
        self,
        strategy: Strategy,
        schedule: Schedule = "auto",
        *,
        local_lr: float | None = None,
        global_lr: float = 1.0,
        lr_key: str = "lr",
        seed: int | None = None,
        nodes: int | None = None,
        trainable: Trainable = None,
        checkpoint: Path | str | None = None,
        send_delta: Literal["full", "half", "cached"] = "full",
        weight_cap: float | None = None,
        aggregate_only: bool = False,
        patience: int = 5,
        wait: float = 120.0,
    ) -> None:
        if send_delta not in ("full", "half", "cached"):
            raise UserError(f"send_delta must be one of full, half, cached, got {send_delta!r}")
        if weight_cap is not None and not weight_cap >= 1:
            raise UserError(f"weight_cap is a factor of the median weight and must be at least 1, got {weight_cap!r}")
        make_schedule(schedule, local_lr=local_lr or 0.01, global_lr=global_lr)  # refuse bad settings before a run
        self.strategy, self.schedule, self.seed = strategy, schedule, seed
        self.local_lr, self.global_lr, self.lr_key = local_lr, global_lr, lr_key
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.send_delta, self.weight_cap = send_delta, weight_cap
        self.aggregate_only, self.patience = aggregate_only, patience
        self.history: list[dict[str, Any]] = []
        self.step: Vector | None = None  # Δ_t-1, under auto with momentum in it: M_t-1
        self.rejected: list[Refusal] = []  # of the newest round
        self._trainable, self._offset = trainable, 0
        self._roster = Roster(nodes, wait)
        self._losses = Losses()
        self._layout: Layout | None = None
        self._spare: Vector | None = None  # memory of a step that is no longer needed
        self._good: ArrayRecord | None = None
        self._means: Arrays | None = None  # None: the newest weights
        self._asked: list[int] = []
        self._idle = 0

    def summary(self) -> None:
        """Log the settings, then the inner strategy's."""
        _log.info("\t├──> FedHyper settings:")
        _log.info("\t│\t├── Schedule: %s", self.schedule)
        _log.info("\t│\t└── Wraps: %s", type(self.strategy).__name__)
        self.strategy.summary()

    # --- what goes out -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, with this round's local rate (and Δ_t-1 for CL)."""
        server_round += self._offset
        self._prepare(arrays, config)
        self._sent = arrays
        known.synchronize(self.strategy, arrays)
        config = config.copy()
        config[LOCAL_LR] = config[self.lr_key] = float(self.state.local_lr)
        messages = self._sample("train", self.strategy.configure_train, server_round, arrays, config, grid)
        if self._client_rule is not None:
            self._attach_rule(self._client_rule, messages)
        self._asked = [message.metadata.dst_node_id for message in messages]
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, with the weights that are returned in the end."""
        server_round += self._offset
        arrays = averaged(self._means, arrays)
        return self._sample("evaluate", self.strategy.configure_evaluate, server_round, arrays, config, grid)

    def _sample(
        self,
        purpose: str,
        configure: Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        ordered = OrderedGrid(grid, self._roster.assemble(grid, ask=self.seed is not None))
        if self.seed is None:
            return list(configure(server_round, arrays, config, grid))
        with seeded(self.seed, purpose, server_round):
            return list(configure(server_round, arrays, config, ordered))

    def _prepare(self, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """The first round's part: a plan from the rates that apply, and the layout of the model."""
        if self._layout is not None:
            return
        self._layout = Layout.of(arrays, self._trainable)
        self._good = arrays
        given = config.get(self.lr_key)
        local_lr = self.local_lr or (float(given) if isinstance(given, (int, float)) else 0.01)
        self.plan, self._client_rule = make_schedule(self.schedule, local_lr=local_lr, global_lr=self.global_lr)
        self.state = self.plan.init()

    def _attach_rule(self, rule: FedHyperCL, messages: list[Message]) -> None:
        """FedHyper-CL's settings, and the last aggregate unless clients keep the weights themselves."""
        settings = {k: v for k, v in asdict(rule).items() if k != "local_steps"}
        extra: dict[str, Any] = {CLIENT: ConfigRecord({**settings, "global_lr": float(self.state.global_lr)})}
        if rule.global_term != "off" and self.step is not None and self.send_delta != "cached":
            named = self.layout.named(self.step)
            if self.send_delta == "half":
                largest = float(np.finfo(np.float16).max)
                named = {k: np.clip(v, -largest, largest).astype(np.float16) for k, v in named.items()}
            extra[DELTA] = ArrayRecord({name: pack(array) for name, array in named.items()})
        for message in messages:  # FedAvg puts one content into all its messages
            message.content = RecordDict({**dict(message.content.items()), **extra})

    @property
    def layout(self) -> Layout:
        """Names, shapes and types of the model's arrays; known from the first round on."""
        if self._layout is None:
            raise RuntimeError("configure_train has not been called yet")
        return self._layout

    # --- what comes back ---------------------------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round as a transaction: either everything moves on, or nothing does and the reason is logged."""
        server_round += self._offset
        messages = list(replies)
        contents = [message.content if message.has_content() else None for message in messages]
        lazy = known.repeatable(self.strategy) and not self.aggregate_only
        believed, errors = self._believe(server_round, messages, finite=not lazy)
        arrays, metrics, fate = self._step(server_round, believed, errors) if believed else (None, None, "idle")
        if lazy and believed and fate == "idle":  # a number in one of them was not finite: find out in which
            for message, content in zip(messages, contents, strict=True):
                if content is not None:
                    message.content = content
            known.synchronize(self.strategy, self._sent)
            believed, errors = self._believe(server_round, messages, finite=True)
            arrays, metrics, fate = self._step(server_round, believed, errors) if believed else (None, None, "idle")
        self._report_rejected()
        self._idle = self._idle + 1 if fate == "idle" else 0
        if fate == "idle":
            self.state = self.plan.lost(self.state)  # clients that all return nonsense were sent too high a rate
            self.step = None if self.state.rollback else self.step
        record = {
            "round": server_round,
            "global_lr": float(self.state.global_lr),
            "local_lr": float(self.state.local_lr),
            "hypergrad": float(self.state.hypergrad),
            "used": len(believed) if fate != "idle" else 0,
            "rejected": len(self.rejected),
            "rollback": fate == "rollback",
        }
        self.history.append(record)
        if self._idle:
            _log.warning("fedhyper: round %d had no usable reply and changes nothing", server_round)
            if self._idle >= self.patience:
                reasons = "; ".join(f"node {r.node}: {r.reason}" for r in self.rejected[:3]) or "nobody answered"
                raise TrainingStopped(f"no usable reply for {self._idle} rounds in a row ({reasons})")
        if self.checkpoint is not None:
            self._save(self.checkpoint, server_round, self._sent if arrays is None else arrays)
        metrics = MetricRecord() if metrics is None else metrics
        for key in ("global_lr", "local_lr", "used", "rejected"):
            metrics[f"{PREFIX}{key.replace('_', '-')}"] = record[key]
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's, on replies in a fixed order."""
        ordered = sorted(replies, key=lambda message: self._roster.position(message.metadata.src_node_id))
        return self.strategy.aggregate_evaluate(server_round + self._offset, ordered)

    def _believe(self, server_round: int, replies: list[Message], *, finite: bool) -> tuple[list[Reply], list[Message]]:
        """The replies to use, in an order that does not depend on who was faster, and the errors Flower reports."""
        errors = [message for message in replies if message.has_error()]
        layout = None if self.aggregate_only else self.layout
        key = known.weight_key(self.strategy)
        expected = Expected(server_round, layout, set(self._asked), key, self.weight_cap, finite)
        believed, self.rejected = sift((message for message in replies if not message.has_error()), expected)
        for reply in believed:
            partition = reply.metrics.get(f"{PREFIX}partition")
            if type(partition) is int and self._roster.partitions.get(reply.node) is None:
                self._roster.partitions[reply.node] = partition
        return sorted(believed, key=lambda reply: self._roster.position(reply.node)), errors

    def _report_rejected(self) -> None:
        for node, reason in self.rejected:
            partition = self._roster.partitions.get(node)
            who = f"node {node}" if partition is None else f"node {node} (partition {partition})"
            _log.warning("fedhyper: reply of %s refused: %s", who, reason)

    def _step(
        self, server_round: int, believed: list[Reply], errors: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None, Literal["step", "rollback", "idle"]]:
        before = views(self._sent)
        steps = known.steps(self.strategy) and not self.aggregate_only
        readable = steps and known.readable(self.strategy)
        names = self.layout.untrained if readable else self.layout.shapes
        raw = self._mean(believed, names) if steps else None  # now: FedMedian empties the replies it reads
        counters = {} if self.aggregate_only else self.layout.largest([reply.arrays for reply in believed])
        memory = known.memory(self.strategy)
        sq_norms = self._sq_norms(before, believed)
        record, metrics = self.strategy.aggregate_train(server_round, [reply.message for reply in believed] + errors)
        after = None if record is None else views(record)
        if after is None or not self.layout.accepts(after):
            known.remember(self.strategy, memory)
            return None, metrics, "idle"
        if readable:
            delta = self.layout.vector(partial(known.read_back, self.strategy, memory), self._spare)
        else:
            delta = self.layout.delta(before, after if raw is None else raw, self._spare)
        hidden = [dict(metrics or {})] if self.aggregate_only else None
        rows, weights = hidden or [reply.metrics for reply in believed], [reply.weight for reply in believed]
        loss = self._losses.mean(rows, weights[: len(rows)])
        sq_norm = reported(SQ_NORM, rows, weights[: len(rows)]) if sq_norms is None else sq_norms
        if gram.knows(self.plan):
            state = gram.update(self.plan, self.state, delta, self.step, loss=loss, sq_norm=sq_norm)
        else:
            state = self.plan.update(self.state, delta.copy(), loss=loss, sq_norm=sq_norm)
        if state.rollback:
            _log.warning("fedhyper: loss %g in round %d; back to the last good weights", loss, server_round)
            known.remember(self.strategy, {})
            self.state, self.step, self._means = state, None, None
            return self._good, metrics, "rollback"
        rate = float(state.global_lr) * (self._graft(before, after, delta) if raw is not None else 1.0)
        if state.momentum and self.step is not None:
            gram.add(delta, state.momentum, self.step)
        step = self.layout.named(delta) if raw is None and (state.momentum or rate != 1) else None
        new = self.layout.stepped(before, after, (after if raw is None else raw) | counters, rate, step, record)
        if new is None:
            known.remember(self.strategy, memory)
            return None, metrics, "idle"
        self._means = moved(self._means, before, views(new), state.newest)
        if not state.settled:  # what the inner strategy remembers of rates that were tried out
            known.remember(self.strategy, {})
        self.state, self._good = state, self._sent if state.settled else self._good
        self._spare, self.step = self.step, delta
        return new, metrics, "step"

    def _graft(self, before: Arrays, after: Arrays, delta: Vector) -> float:
        """Under auto, whose budget is in lengths of Δ, Adam gives the direction and Δ the length: see ``Grafted``."""
        if not (isinstance(self.plan, Auto) and known.unitless(self.strategy)):
            return 1.0
        length = math.sqrt(gram.sq_distance(before, after, self.layout.trained))
        return Grafted.times * math.sqrt(gram.products(delta, None)[1]) / length if length > 0 else 0.0

    def _mean(self, believed: list[Reply], names: Iterable[str]) -> Arrays:
        return mean([reply.arrays for reply in believed], [reply.weight for reply in believed], names)

    def _sq_norms(self, before: Arrays, believed: list[Reply]) -> float | None:
        """Σ p_m |Δ_m|², which auto and FedExP read; None where clients report it, or replies are masked."""
        if "sq_norm" not in self.plan.requires:
            return math.nan
        if self.aggregate_only or all(SQ_NORM in reply.metrics for reply in believed):
            return None
        total = sum(reply.weight for reply in believed)
        distances = gram.sq_distances(before, [reply.arrays for reply in believed], self.layout.trained)
        return sum(reply.weight / total * squared for reply, squared in zip(believed, distances, strict=True))

    # --- resuming ----------------------------------------------------------------------------------------------------

    def _save(self, path: Path, server_round: int, arrays: ArrayRecord) -> None:
        assert self._good is not None
        saved = Saved(
            server_round=server_round,
            arrays=arrays,
            good=self._good,
            means=self._means,
            plan=self.state,
            step=self.step,
            memory=known.memory(self.strategy),
            losses=self._losses.state(),
            idle=self._idle,
            history=self.history,
        )
        save(path, saved, self._identity())

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "schedule": repr((self.plan, self._client_rule)),
            "strategy": type(self.strategy).__name__,
            "seed": self.seed,
            "arrays": {name: [str(self.layout.dtypes[name]), *shape] for name, shape in self.layout.shapes.items()},
            "trained": list(self.layout.trained),
        }

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        resume: bool = False,
    ) -> Result:
        """Run up to round ``num_rounds``. ``resume``: from the checkpoint if there is one, to the same bits as a run
        that never stopped; without it an existing checkpoint is refused, not overwritten."""
        self._prepare(initial_arrays, train_config or ConfigRecord())
        arrays = initial_arrays
        if self.checkpoint is not None and self.checkpoint.exists():
            if not resume:
                raise UserError(f"checkpoint {self.checkpoint} exists; go on with start(resume=True), or delete it")
            arrays = self._resume(self.checkpoint)
        done = self._offset
        result = super().start(
            grid,
            arrays,
            max(num_rounds - done, 0),
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn and (lambda t, record: evaluate_fn(t + done, averaged(self._means, record))),
        )
        result.arrays = averaged(self._means, result.arrays or arrays)
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            shifted = {server_round + done: value for server_round, value in metrics.items()}
            metrics.clear()
            metrics.update(shifted)
        return result

    def _resume(self, path: Path) -> ArrayRecord:
        saved = load(path, self._identity(), like=self.plan.init())
        self._offset, self._good, self.state, self.step = saved.server_round, saved.good, saved.plan, saved.step
        self._idle, self.history, self._means = saved.idle, saved.history, saved.means
        self._losses.restore(saved.losses)
        known.remember(self.strategy, saved.memory)
        _log.info("fedhyper: going on after round %d from %s", saved.server_round, path)
        return saved.arrays
