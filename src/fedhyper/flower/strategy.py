"""``FedHyper``: a Flower strategy around a Flower strategy, which sets both learning rates while training runs.

    strategy = FedHyper(FedAvg(fraction_train=0.5))
    result = strategy.start(grid, initial_arrays, num_rounds=50)

Here are Flower's hooks and nothing else. A round goes: replies that cannot be believed are refused and the inner
strategy puts the others together (``aggregate``); the server loop, ``fedhyper.loop``, decides both rates and steps, or
returns to the last good weights (``run``); what comes out is sent next, with the local rate in the config entries
``local-lr`` and ``lr``. NumPy is all the server needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedhyper.automatic.tries import PART
from fedhyper.errors import TrainingStopped, UserError
from fedhyper.flower import last_good
from fedhyper.flower.gram import lengths
from fedhyper.flower.inner import nesting, stepping
from fedhyper.flower.nodes import Roster
from fedhyper.flower.outgoing import (
    SHORT,
    UNHEARD,
    UNTOLD,
    attach_rule,
    let_climb,
    put_back,
    rate_entries,
    rates_used,
    spread_rates,
    too_few,
    tried,
)
from fedhyper.flower.private import everybody, terms
from fedhyper.flower.records.layout import Layout, Trainable
from fedhyper.flower.records.replies import Expected, Refusal, sift_evaluation
from fedhyper.flower.run import EvaluateFn, Run
from fedhyper.flower.run_log import OnRound, RunLog, complain, complain_of_evaluation, shown
from fedhyper.flower.saving import Saver
from fedhyper.flower.schedules import Schedule, check_settings, described, make_schedule
from fedhyper.guard import NORM_CAP
from fedhyper.loop import LoopState
from fedhyper.privacy import Privacy
from fedhyper.storage.record import RoundRecord

_log = logging.getLogger("flwr")


class FedHyper(Strategy):
    """Wrap ``strategy`` so that the learning rates set themselves. After a round ``history`` has its record.

    strategy        any Flower strategy: it samples, configures and aggregates as ever
    schedule        "auto" (no rate to choose), "g", "sl", "cl", "g+sl", "g+cl", "constant"; rule objects; or a plan
    local_lr        the clients' initial rate, above 0; None: the train config's ``lr_key``, or 0.01. Higher: longer
                    local steps. auto finds its own, and uses this only where clients cannot try rates out
    global_lr       the initial global rate, above 0, which multiplies the server's step; higher: longer steps
    lr_key          the train config's entry that clients already take their rate from; set every round. None: those of
                    the usual names that are in it, or "lr"
    loss_key        the metric that is the clients' training loss; None: the usual names are tried
    seed            any integer: nodes are sampled by partition from it, and replies summed up in that order, so that a
                    run can be repeated to the bit; None: as Flower does
    nodes           how many to wait for before the first round; None: with a seed, the number they report themselves
    wait            seconds that this may take, then the run starts with those that came; higher: later, and complete
    trainable       names, or a predicate, of the arrays that are trained; None: floats that are no BatchNorm statistic
    checkpoint      a file to replace after every round, from which ``start(resume=True)`` goes on; None: none
    checkpoint_every  rounds between two of them, at least 1; higher costs less, and a killed run loses more
    run_dir         a directory for the records of the run, which ``fedhyper report`` shows; None: none
    on_round        called with the record of each round once it is complete, evaluation and all; None: nobody
    send_delta      how CL's clients learn the last aggregate: "full" (a second model down), "half" (as float16, half
                    of that), "cached" (nothing: they keep the weights of the last round)
    norm_cap        strongest pull (weight × length of the update) of one reply, in medians of the round; raising it
                    cuts less, 0 cuts nothing and switches the other rules of ``fedhyper.guard`` off, too
    privacy         clip every reply and hide it in noise (``fedhyper.privacy``); ε(δ) is in the record of each round.
                    ``nodes`` must be given, ``fraction_train`` is each one's chance to take part, and nobody is asked
                    to evaluate; None: not private
    aggregate_only  the replies are masked (secure aggregation): only the inner strategy's result is looked at
    patience        rounds in a row without a usable reply after which the run stops; higher waits longer
    """

    def __init__(
        self,
        strategy: Strategy,
        schedule: Schedule = "auto",
        *,
        local_lr: float | None = None,
        global_lr: float = 1.0,
        lr_key: str | None = None,
        loss_key: str | None = None,
        seed: int | None = None,
        nodes: int | None = None,
        wait: float = 120.0,
        trainable: Trainable = None,
        checkpoint: Path | str | None = None,
        checkpoint_every: int = 1,
        run_dir: Path | str | None = None,
        on_round: OnRound | None = None,
        send_delta: Literal["full", "half", "cached"] = "full",
        norm_cap: float = NORM_CAP,
        privacy: Privacy | None = None,
        aggregate_only: bool = False,
        patience: int = 5,
    ) -> None:
        check_settings(send_delta, norm_cap, checkpoint_every)
        make_schedule(schedule, local_lr=local_lr or 0.01, global_lr=global_lr)  # refuse bad settings before a run
        self.strategy, self.schedule, self.seed = strategy, schedule, seed
        self.local_lr, self.global_lr, self.lr_key, self.loss_key = local_lr, global_lr, lr_key, loss_key
        self.nodes, self.wait, self.trainable, self.norm_cap = nodes, wait, trainable, norm_cap
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.checkpoint_every, self.on_round = checkpoint_every, on_round
        self.run_dir = Path(run_dir) if run_dir is not None else None
        self.send_delta, self.aggregate_only, self.patience = send_delta, aggregate_only, patience
        self._terms = terms(privacy, strategy, nodes=nodes, seed=seed, aggregate_only=aggregate_only)
        self.rejected: list[Refusal] = []  # of the newest round
        self._current: Run | None = None

    def __getattr__(self, name: str) -> Any:
        """What FedHyper has not is the inner strategy's: its settings, and methods of an app's own."""
        if name.startswith("__") or "strategy" not in vars(self):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def summary(self) -> None:
        """Log the settings, then the inner strategy's."""
        _log.info("\t├──> FedHyper settings:")
        _log.info("\t│\t├── Schedule: %s", self.schedule)
        _log.info("\t│\t└── Wraps: %s", " around ".join(type(one).__name__ for one in nesting.chain(self.strategy)))
        nesting.own(self.strategy, "summary")()

    @property
    def history(self) -> list[RoundRecord]:
        """The record of every round so far, as the simulator and ``metrics.jsonl`` have it."""
        return [] if self._current is None else self._records.history

    @property
    def state(self) -> LoopState:
        """The server loop's state; known from the first round on."""
        return last_good.unfold(self._run.state)

    @property
    def layout(self) -> Layout:
        """Names, shapes and types of the model's arrays; known from the first round on."""
        return self._run.layout

    @property
    def _run(self) -> Run:
        if self._current is None:
            raise RuntimeError("configure_train has not been called yet")
        return self._current

    def _begin(self, arrays: ArrayRecord, config: ConfigRecord) -> Run:
        """A new run: nothing of an earlier one stays."""
        rates = [config.get(key) for key in rate_entries(config, self.lr_key)]
        given = next((float(rate) for rate in rates if isinstance(rate, (int, float)) and rate > 0), None)
        self._own_lr = self.local_lr or given  # None: the app says none
        self._current = run = Run(
            self.strategy,
            self.schedule,
            arrays,
            local_lr=self._own_lr or 0.01,
            global_lr=self.global_lr,
            trainable=self.trainable,
            aggregate_only=self.aggregate_only,
            norm_cap=self.norm_cap,
            loss_key=self.loss_key,
            private=self._terms,
        )
        self._roster, self._records = Roster(self.nodes, self.wait), RunLog(self.run_dir, self.on_round)
        self._saver = Saver(self.checkpoint, self.checkpoint_every, self.seed)
        self.rejected, self._asked, self._rungs = [], set[int](), dict[int, int]()
        self._given: ArrayRecord | None = None  # the mean that a loop of the inner strategy's own was given
        self._loop_is_theirs, self._climbs, self._warned = False, False, set[str]()
        self._rounds, self._few = None, None  # type: int | None, str | None  # known inside start(); a word of warning
        return run

    def _warn_once(self, what: str, line: str, *words: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning(f"fedhyper: {line}", *words)

    # --- what goes out -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, with this round's local rate (and Δ_t-1 for CL)."""
        nesting.refuse_noise_outside()
        run = self._current or self._begin(arrays, config)
        self._records.tell()
        if arrays is not run.record and arrays is not self._given:  # whoever runs the rounds has the last word
            run.replace(arrays)
        stepping.synchronize(self.strategy, run.record)
        entries, config, rate = rate_entries(config, self.lr_key), config.copy(), float(run.state.local_lr)
        config.update(dict.fromkeys(entries, rate))
        configure = nesting.own(self.strategy, "configure_train")
        with nullcontext() if self._terms is None else everybody(self.strategy):
            messages = self._roster.sample(configure, server_round + run.offset, run.record, config, grid, self.seed)
        if self._terms is not None:
            messages = self._terms.drawn(messages, server_round + run.offset, self._roster)
        if put_back(messages, entries, rate):
            self._warn_once("rate", "the strategy sets %s itself; FedHyper's rate is sent instead", entries[-1])
        if run.client_rule is not None:
            attach_rule(run.client_rule, messages, run.state, self.send_delta)
        self._rungs, ladder = {}, run.plan.ladder
        self._climbs = run.state.climbs and ladder is not None
        # a rate each would be compared by losses: in a private run these have no noise, and masked they are not seen
        if ladder is not None and self._climbs and (self._terms is not None or self.aggregate_only):
            let_climb(ladder, messages, binned=self.aggregate_only)
        elif ladder is not None and self._climbs:
            self._rungs = spread_rates(ladder, messages, run.state, entries)
            self._few = None if self._rounds is None else too_few(len(messages), self._rounds)
        self._asked = {message.metadata.dst_node_id for message in messages}
        self._records.sent(messages)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, with the weights that are returned in the end."""
        run, configure = self._run, nesting.own(self.strategy, "configure_evaluate")
        if self._terms is not None:
            self._warn_once("evaluate", "privacy: clients are not asked to evaluate, for that has no noise")
            return []
        messages = self._roster.sample(configure, server_round + run.offset, run.kept(arrays), config, grid, self.seed)
        self._asked = {message.metadata.dst_node_id for message in messages}
        return messages

    # --- what comes back ---------------------------------------------------------------------------------------------

    def _expected(self, server_round: int, hook: str) -> Expected:
        key, free = nesting.weight_key(self.strategy), nesting.of_the_apps_own(self.strategy, hook)
        plan, rounds = self._run.state.plan, self._rounds
        short = rounds is not None and rounds <= SHORT
        ladder = self._run.plan.ladder
        longest = ladder is not None and self._run.state.round + 1 >= ladder.voices  # no plan waits for more rounds
        return Expected(
            server_round,
            self._run.layout,
            self._asked,
            key,
            free,
            self.aggregate_only,
            self._rungs,
            self._climbs,
            plan.tried,
            plan.first,
            enough=longest or (rounds is not None and server_round >= rounds // PART),
            hurried=short,
            # only the first round begins so low that most of its clients hardly move, and show what they differ by
            own_lr=self._own_lr if short and not plan.tried else None,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round as a transaction: either everything moves on, or nothing does and the reason is logged."""
        run, messages = self._run, list(replies)
        self._saver.wait()
        self._records.answered(messages)
        server_round += run.offset
        expected, before = self._expected(server_round, "aggregate_train"), run.state
        made = run.aggregator(server_round, run.sent, messages, expected, self._roster)
        decision, self.rejected = run.decide(made), made.rejected
        compared = before.round > 0 and "delta" in run.plan.requires
        measured = {"hypergrad": decision.hypergrad if compared else None, **lengths(run.state.plan, run.plan.compares)}
        run.heard = run.heard and not made.unheard
        waits = decision.action == "idle" and made.report.votes is not None  # while clients go on trying rates out
        rates = rates_used(made, run.plan.ladder, self._rungs, before.local_lr, heard=run.heard, waits=waits)
        spent = {} if run.private is None else run.private.tell(server_round)
        record = self._records.add(server_round, rates, made, decision, measured, spent)
        trying = self._rungs and (made.believed or waits) and not (made.report.climbed or made.unheard)
        if trying and run.plan.ladder is not None:
            said = tried(run.plan.ladder, self._rungs, rates, len(made.believed), decision.local_lr, waits=waits)
            _log.info("fedhyper: %s", said)
            if self._few is not None:  # clients that climb need no more
                self._warn_once("few", self._few)
        if made.untold:
            self._warn_once("untold", UNTOLD, self._rounds, self._own_lr)
        if made.unheard:
            self._warn_once("unheard", UNHEARD, self.lr_key or "lr")
        reasons = complain(record, self.rejected, messages, self._asked, self._roster, waits=waits)
        idle = run.state.idle if run.private is None else run.private.silent
        if idle >= self.patience:
            raise TrainingStopped(f"no usable reply for {idle} rounds in a row ({reasons})")
        self._saver.save(run, self.history)
        metrics = MetricRecord() if made.metrics is None else made.metrics
        metrics.update(shown(record))
        self._given = run.kept(run.record) if self._loop_is_theirs else run.record
        return None if decision.action == "idle" else self._given, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's, on replies in a fixed order and of one form."""
        server_round += self._run.offset
        ordered = sorted(replies, key=lambda message: self._roster.position(message.metadata.src_node_id))
        errors = [message for message in ordered if message.has_error()]
        expected = self._expected(server_round, "aggregate_evaluate")
        believed, rejected = sift_evaluation((m for m in ordered if not m.has_error()), expected)
        complain_of_evaluation(rejected, self._roster)
        metrics: MetricRecord | None = nesting.own(self.strategy, "aggregate_evaluate")(server_round, believed + errors)
        self._records.evaluated(server_round, metrics)
        return metrics

    # --- a whole run -------------------------------------------------------------------------------------------------

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
        **others: Any,
    ) -> Result:
        """A new run up to round ``num_rounds``. ``resume``: from the checkpoint if there is one, to the same bits as a
        run that never stopped; without it an existing checkpoint is refused, not overwritten. An inner strategy with a
        ``start`` of its own runs the rounds; ``others`` are that one's."""
        run = self._begin(initial_arrays, train_config or ConfigRecord())
        history: list[RoundRecord] = []
        if self.checkpoint is not None and self.checkpoint.exists():
            if not resume:
                raise UserError(f"checkpoint {self.checkpoint} exists; go on with start(resume=True), or delete it")
            history = self._saver.resume(run)
            _log.info("fedhyper: going on after round %d from %s", run.offset, self.checkpoint)
        local_lr = run.plan.init().local_lr if self.local_lr is None else self.local_lr
        settings = {"rounds": num_rounds, "local_lr": local_lr, "global_lr": self.global_lr, "seed": self.seed}
        unsaved = 0 if self.checkpoint is None else self.checkpoint_every
        described_run = described(self.schedule, self.strategy, settings)
        self._records.begin(described_run, history, resume=resume, unsaved=unsaved)

        rounds: dict[str, Any] = {
            "num_rounds": max(num_rounds - run.offset, 0),
            "timeout": timeout,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
            "evaluate_fn": run.evaluating(evaluate_fn, self._records.evaluated),
            **others,
        }
        self._loop_is_theirs, self._rounds = type(self.strategy).start is not Strategy.start, num_rounds
        with self._records.under_way(), self._saver:
            if self._loop_is_theirs:
                with nesting.driven_by(self.strategy, self):
                    result = self.strategy.start(grid, run.record, **rounds) or Result()
            else:
                result = super().start(grid, run.record, **rounds)
            self._saver.save(run, self.history, due=True)
        result.arrays = run.kept(run.record)
        self._records.end(result.arrays)
        run.renumber(result)
        return result
