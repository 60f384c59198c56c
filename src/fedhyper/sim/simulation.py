"""One federated run, round by round: the paper's Algorithm 1, with its signs put right."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedhyper.arrays import cosine, inner
from fedhyper.automatic.ladder import RUNGS, Ladder
from fedhyper.client.vectors import FlatModel
from fedhyper.errors import UserError
from fedhyper.guard import NORM_CAP
from fedhyper.loop import LoopState, ServerLoop
from fedhyper.plan import Shape
from fedhyper.privacy import Privacy
from fedhyper.sim.aggregate import Aggregate, judged
from fedhyper.sim.climbing import climb
from fedhyper.sim.cohorts import Cohorts, Sampling
from fedhyper.sim.data.augment import Kind as AugmentKind
from fedhyper.sim.data.augment import check_augment
from fedhyper.sim.data.fitting import check_fit
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import Engine, Sent, gather, scatter
from fedhyper.sim.engines.choice import Chosen, make_engine
from fedhyper.sim.engines.choice import Kind as EngineKind
from fedhyper.sim.engines.processes import ProcessEngine
from fedhyper.sim.engines.threads import one_thread
from fedhyper.sim.methods import Method
from fedhyper.sim.models import check_batches
from fedhyper.sim.private import PrivateAggregate
from fedhyper.sim.rng import generator
from fedhyper.sim.robust import Kind
from fedhyper.sim.rounds import LookAhead, RunState, Step
from fedhyper.sim.start import PANEL, Panel, Start, find_start
from fedhyper.storage.checkpoint import from_plain, to_plain
from fedhyper.storage.record import RoundRecord, finite
from fedhyper.storage.restoring import check_state

_SCALAR_BYTES = 8
_KEPT = 1 << 19  # weights up to which the rounds of a start are kept and not trained again: 8 MB a round of each rate


class Simulation:
    """A federated run on one machine. ``run_round()`` until you have enough; the same settings give the same bits.

    task               the data: what to learn
    partition          who holds which examples
    model              the architecture and w_0
    method             what decides the rates, what the server makes of an aggregate, what clients run
    clients_per_round  M, from 1 to the number of clients; raising it makes the aggregate less noisy and a round longer
    local_epochs       a client's passes over its data in a round, at least 1; raising it sends clients further apart
    batch_size         examples a step, at least 1; raising it makes gradients less noisy and steps fewer
    seed               where all randomness comes from: who is sampled, and the order of the batches
    local_steps        steps a client makes in a round, instead of epochs; 0: as many as the epochs have
    rounds             how many there will be, 0 if nobody knows: ``fedhyper``'s start looks no further ahead
    warmup_rounds      n: round t of the first n trains with t/n of the local rate; raising it is gentler, 0: at once
    augment            what chance does to the images a client trains on: "none", "flip" or "flip-crop"
    weighting          a client's weight in the mean: its examples, or all alike
    sampling           who is chosen: all alike, by the data held, or "poisson": each by a coin of its own, so that
                       clients_per_round is a mean
    carry              CL: a round starts from the median of the clients' last rates, not from the method's local rate
    norm_cap           strongest pull (weight × length of the update), in medians of the round; raising it cuts less,
                       0 cuts nothing, no other rule of ``fedhyper.guard`` either, and updates need not be held
    aggregate          "mean", or one that holds against some hostile clients: "trimmed", "median", "krum"
    privacy            clip, and add noise to the mean (uniform weighting, poisson sampling); None: do not
    engine             "fast": "threads" or "processes", whichever is faster; the bits are the same. "sequential" is
                       their slow twin; an ``Engine`` of one's own trains clients elsewhere, as Flower's nodes do
    workers            cores that train clients, at least 1; never changes a result
    device             where clients train: cpu, cuda, cuda:1
    dtype              of the clients' weights and gradients; the server's stay float32
    """

    def __init__(
        self,
        *,
        task: Task,
        partition: Partition,
        model: nn.Module,
        method: Method,
        clients_per_round: int,
        local_epochs: int,
        batch_size: int,
        seed: int,
        local_steps: int = 0,
        rounds: int = 0,
        warmup_rounds: int = 0,
        augment: AugmentKind = "none",
        weighting: Literal["examples", "uniform"] = "examples",
        sampling: Sampling = "uniform",
        carry: bool = False,
        norm_cap: float = NORM_CAP,
        aggregate: Kind = "mean",
        privacy: Privacy | None = None,
        engine: EngineKind | Engine = "fast",
        workers: int = 1,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.task, self.partition, self.method = task, partition, method
        self.cohorts = Cohorts(
            partition,
            seed=seed,
            clients_per_round=clients_per_round,
            sampling=sampling,
            batch_size=batch_size,
            local_epochs=local_epochs,
            local_steps=local_steps,
            augment=augment,
        )
        self.clients_per_round, self.seed, self.weighting = clients_per_round, seed, weighting
        self.carry, self.norm_cap, self.aggregate = carry, norm_cap, aggregate
        self.privacy, self.rounds, self.warmup_rounds = privacy, rounds, warmup_rounds
        check_augment(augment, task)
        check_fit(model, task)
        check_batches(model, task.train_x[0], partition.sizes, batch_size)
        self._flat = FlatModel(model)
        if isinstance(engine, str):
            chosen = make_engine(
                engine,
                model=model,
                task=task,
                local=method.local,
                batch_size=batch_size,
                workers=workers,
                device=device,
                dtype=dtype,
                augmented=augment != "none",
            )
        else:
            chosen = Chosen(engine, "")
        self.engine, self._chosen = chosen.engine, chosen
        self._known: deque[tuple[RunState, Step]] = deque()  # rounds to come that a start has made already
        self.loop = ServerLoop(method.plan, method.server, method.average)
        counters = gather(list(self._flat.counters.values()), torch.int64)
        start = self.loop.init(self._flat.weights.clone(), self._flat.buffers.float().clone())
        self._state = self._fresh = RunState(
            start, 0.0, counters, carried_lr=math.nan, clip=math.nan if privacy is None else privacy.clip
        )
        if privacy is not None and (self._flat.buffers.numel() or counters.numel()):
            raise UserError(
                "privacy: the model averages statistics, which have no noise; use one without (norm = group)"
            )

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._state.loop.round

    @property
    def trained_by(self) -> str:
        """What trains the clients and why, in a line; "" for an engine of one's own."""
        if self.engine is not self._chosen.engine:
            return ""
        return (isinstance(self.engine, ProcessEngine) and self.engine.problem) or self._chosen.why

    @property
    def server_state(self) -> LoopState:
        """The server's state: weights, rates, where a rollback returns to, what is evaluated. Not to be written to."""
        return self._state.loop

    @property
    def idle_rounds(self) -> int:
        """How many rounds in a row had no usable update."""
        return self._state.loop.idle

    def run_round(self, *, evaluate: bool = True) -> RoundRecord:
        """One round; its record comes back. The state changes only when everything has succeeded."""
        with one_thread():
            return self._run_round(evaluate=evaluate)

    def _run_round(self, *, evaluate: bool) -> RoundRecord:
        state, started = self._state, time.perf_counter()
        ladder = self.method.plan.ladder if state.loop.climbs else None
        start = None if ladder is None else self._find_start(ladder)
        # a round that the start has made is counted where it belongs, not in the first
        searched = 0.0 if start is None else time.perf_counter() - started - sum(sum(s.seconds) for s in self._own())
        step = self._known_step() or self._step(state, start)
        stepped = time.perf_counter()
        scores = self._evaluate(step.state) if evaluate else {"test_loss": None, "accuracy": None}
        done = time.perf_counter()
        self._state = step.state

        now, total = state.loop.now, step.total
        payload = 4 * (now.weights.numel() + now.statistics.numel()) + 8 * state.counters.numel()
        down = payload + _SCALAR_BYTES + (0 if step.sent.delta is None else 4 * step.sent.delta.numel())
        cos, norm = _compared(step.delta, state.delta)
        return finite(
            {
                "round": step.state.loop.round,
                "global_lr": step.decision.global_lr,
                **total.rates(step.sent.local_lr),
                "hypergrad": step.decision.hypergrad
                if state.loop.round and "delta" in self.method.plan.requires
                else None,
                "cosine": cos,
                "update_norm": norm,
                "train_loss": total.train_loss,
                **scores,
                "seconds_train": searched + step.seconds[0],
                "seconds_aggregate": step.seconds[1],
                "seconds_evaluate": done - stepped,
                "bytes_up": total.sent * (payload + 3 * _SCALAR_BYTES),
                "bytes_down": total.sent * down,
                "clients_used": total.used,
                "clients_rejected": total.sent - total.used,
                "reject_reasons": dict(sorted(total.rejected.items())),
                "rollback": step.decision.action == "rollback",
                **({} if start is None else {"start_trials": start.trials}),
                **({} if start is None or start.votes else {"start_failed": True}),
                **self._spent(step.state.released),
            }
        )

    def _known_step(self) -> Step | None:
        """The next round, if it was made in the start; what was made from another state than this one is forgotten."""
        before, step = self._known.popleft() if self._known else (None, None)
        if step is None or before is not self._state:
            self._known.clear()
            return None
        return step

    def _own(self) -> list[Step]:
        """The rounds of this run that the start has made."""
        return [step for _, step in islice(self._known, self._left(self._state) or None)]

    def _left(self, state: RunState) -> int:
        """Rounds still to come, 0 if nobody knows."""
        return max(0, self.rounds - state.loop.round)

    def _spent(self, times: int) -> dict[str, float]:
        """ε so far, in a private run."""
        share = self.clients_per_round / self.partition.clients
        return {} if self.privacy is None else {"epsilon": self.privacy.epsilon(times, share)}

    def _sent(self, state: RunState) -> Sent:
        """What the clients of a round get: w_t, β_t (and Δ_t-1 for CL's global term)."""
        local_lr = state.loop.local_lr if math.isnan(state.carried_lr) else state.carried_lr
        if state.loop.round < self.warmup_rounds:
            local_lr *= (state.loop.round + 1) / self.warmup_rounds
        delta_down = state.delta if self.method.local.needs_delta and isinstance(state.delta, Tensor) else None
        now = state.loop.now
        return Sent(now.weights, now.statistics, state.counters, local_lr, delta_down, self.clients_per_round)

    def _step(self, state: RunState, start: Start | None = None) -> Step:
        """The round after ``state``, which stays as it is; the first of a run may have a ``start``."""
        plan, sent, started = self.method.plan, self._sent(state), time.perf_counter()
        votes, shape = (None, Shape()) if start is None else (start.votes, start.shape)
        if votes and plan.ladder is not None:
            sent = sent._replace(local_lr=plan.ladder.rate(votes[0][0]))

        # M clients take K local steps each and return Δ_m = w_t − w_m; Δ_t = Σ p_m Δ_m over those that can be believed
        replies = self.engine.train(self.cohorts.tasks(state.loop.round), sent)
        total, clip = Aggregate(sent, plan.requires, self.aggregate, self.norm_cap), state.clip
        if self.privacy is not None:
            rng = generator(self.seed, "privacy", state.loop.round)
            total = PrivateAggregate(sent, self.privacy, clip, self.clients_per_round, rng)
        if self.weighting == "uniform":
            replies = (reply._replace(examples=1) for reply in replies)
        if self.norm_cap:
            replies = judged(replies, sent, self.norm_cap)
        for reply in replies:
            total.add(reply)
        report, trained = total.report(votes)._replace(shape=shape), time.perf_counter()
        clip = total.next_clip() if isinstance(total, PrivateAggregate) else clip

        # α_t and β_t+1 from Δ_t and what went before, then w_t+1 = w_t − α_t · step(Δ_t), or a rollback
        loop, decision = self.loop.update(state.loop, report)
        if decision.action == "rollback" and self.privacy is None:
            panel = Panel(self.engine, self.cohorts.judges(state.loop.round, PANEL), sent, state.loop.good)
            if panel.judged(state.loop.mean).surely_gains:  # otherwise they may both be dead: back is safer
                loop, decision = self.loop.update(state.loop, report._replace(refuted=True))
        new = state._replace(loop=loop, clip=clip, released=state.released + 1 + (votes is not None))
        if report.delta is not None and decision.action == "step":
            carried = total.last_lr if self.carry else math.nan
            new = new._replace(delta=report.delta, counters=total.counters(state.counters), carried_lr=carried)
        elif decision.action == "rollback":
            new = new._replace(delta=0.0)
        return Step(new, sent, total, report.delta, decision, (trained - started, time.perf_counter() - trained))

    def _find_start(self, ladder: Ladder) -> Start:
        """Clients of this round, and of the next ones if these are few, try rates out at the weights of this one."""
        state, sent = self._state, self._sent(self._state)
        t = state.loop.round
        if self.privacy is not None:  # a panel's losses would tell more than votes, which are counted with noise
            climbed = climb(self.engine, self.cohorts.tasks(t), sent, ladder)
            noise = generator(self.seed, "votes", t).standard_normal(RUNGS).tolist()
            counted = self.privacy.counted([rung for rung, _ in climbed.votes], noise)
            voted = ladder.voted([rung for rung, _ in counted])
            return Start(() if voted is None else ((voted, 0.0),) * ladder.voices, trials=climbed.trials)

        runs: dict[Start, LookAhead] = {}

        def run(start: Start) -> LookAhead:
            return runs.setdefault(start, LookAhead(self._step, state, start, keep=sent.weights.numel() <= _KEPT))

        start = find_start(
            self.engine,
            sent,
            ladder,
            (self.cohorts.voters(t + i, ladder.voices) for i in range(ladder.voices)),
            (lambda task: float(task.examples)) if self.weighting == "examples" else (lambda _: 1.0),
            Panel(self.engine, self.cohorts.judges(t, PANEL), sent, state.loop.now),
            run,
            self._left(state),
        )
        won = runs.get(start._replace(trials=0))
        self._known = won.kept if won else deque()
        return start._replace(trials=start.trials - sum(step.total.sent for step in self._own()))

    def evaluate(self) -> dict[str, float]:
        """Mean loss and accuracy (a fraction) on the task's test set."""
        with one_thread():
            return self._evaluate(self._state)

    def _evaluate(self, state: RunState) -> dict[str, float]:
        loss, accuracy = self.engine.evaluate(_to_evaluate(state))
        return {"test_loss": loss, "accuracy": accuracy}

    def client_accuracy(self, partition: Partition | None = None) -> list[float]:
        """The global model's accuracy on each client's own training data, in client order; ``partition`` says whose."""
        with one_thread():
            return self.engine.accuracy_by_client(_to_evaluate(self._state), partition or self.partition)

    def named_weights(self) -> dict[str, Tensor]:
        """What is evaluated, parameters and buffers by name, as ``model.load_state_dict`` takes them."""
        kept, flat = self._state.loop.mean, self._flat
        named = {name: value.clone() for name, value in flat.named(kept.weights).items()}
        named |= {piece.name: piece.view(kept.statistics).clone() for piece in flat.buffer_pieces}
        counters = {name: value.clone() for name, value in flat.counters.items()}
        scatter(self._state.counters, list(counters.values()))
        return named | counters

    def weights_sha256(self) -> str:
        """SHA-256 of w_t and its buffers, little-endian, in the standard order."""
        digest = hashlib.sha256()
        for tensor in (*self._state.loop.now, self._state.counters):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def state(self) -> tuple[dict[str, Tensor], Any]:
        """Everything that changes, as tensors and JSON: what a checkpoint holds."""
        tensors: dict[str, Tensor] = {}
        values = to_plain(self._state, tensors, "state")
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Continue from ``state()``, to the same bits; ValueError, and nothing changed, if it is none of this run."""
        restored = from_plain(values, tensors, self._fresh)
        check_state(restored, self._fresh)
        self._state = restored

    def close(self) -> None:
        """End the workers."""
        self.engine.close()


def _compared(delta: Tensor | None, before: Tensor | float) -> tuple[float | None, float | None]:
    """The cosine of Δ_t with Δ_t-1, and |Δ_t|; None where there is no such thing."""
    if delta is None:
        return None, None
    cos = None if isinstance(before, float) else float(cosine(delta, before))
    return cos, math.sqrt(float(inner(delta, delta)))


def _to_evaluate(state: RunState) -> Sent:
    return Sent(state.loop.mean.weights, state.loop.mean.statistics, state.counters, math.nan, None)
