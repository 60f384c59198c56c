"""One federated run, round by round: the paper's Algorithm 1, with its signs put right."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedhyper.arrays import cosine, inner
from fedhyper.client.vectors import FlatModel
from fedhyper.guard import all_finite, norm_caps, reject_reason
from fedhyper.optimizers import Average, Momentum
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Engine, Reply, Sent, gather, make_engine, scatter
from fedhyper.sim.methods import Method
from fedhyper.sim.models import check_batches
from fedhyper.sim.rng import generator
from fedhyper.sim.state import ServerState
from fedhyper.storage.checkpoint import from_plain, to_plain

_SCALAR_BYTES = 8


class Simulation:
    """A federated run on one machine. ``run_round()`` until you have enough; the same settings give the same bits.

    ``model`` gives the architecture and w_0. ``engine="sequential"`` is the slow twin of ``"fast"``, the default.
    ``workers`` is the number of threads that train clients and never changes a result. Before the first round
    ``engine`` may be replaced by another ``Engine``: that is how Flower's nodes train a simulation's clients.
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
        weighting: Literal["examples", "uniform"] = "examples",
        sampling: Literal["uniform", "size"] = "uniform",
        carry: bool = False,
        norm_cap: float = 0.0,
        engine: Literal["fast", "sequential"] = "fast",
        workers: int = 1,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.task, self.partition, self.method = task, partition, method
        self.clients_per_round, self.local_epochs, self.local_steps = clients_per_round, local_epochs, local_steps
        self.batch_size, self.seed, self.weighting, self.sampling = batch_size, seed, weighting, sampling
        self.carry, self.norm_cap = carry, norm_cap
        check_batches(model, task.train_x[0], partition.sizes, batch_size)
        self._flat = FlatModel(model)
        self.engine: Engine = make_engine(
            engine, model=model, task=task, local=method.local, workers=workers, device=device, dtype=dtype
        )
        weights, buffers = self._flat.weights.clone(), self._flat.buffers.float().clone()
        self._state = ServerState(
            round=0,
            weights=weights,
            buffers=buffers,
            counters=gather(list(self._flat.counters.values()), torch.int64),
            plan=method.plan.init(),
            moments=method.server.init(),
            delta=0.0,
            mean=weights,
            mean_buffers=buffers,
            good=weights,
            good_buffers=buffers,
            carried_lr=math.nan,
            idle_rounds=0,
        )

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._state.round

    @property
    def idle_rounds(self) -> int:
        """How many rounds in a row had no usable update."""
        return self._state.idle_rounds

    def run_round(self, *, evaluate: bool = True) -> dict[str, Any]:
        """One round; its record comes back. The state changes only when everything has succeeded."""
        state, started = self._state, time.perf_counter()

        # the server samples M clients and sends them w_t, β_t (and Δ_t-1 for CL's global term)
        local_lr = state.plan.local_lr if math.isnan(state.carried_lr) else state.carried_lr
        delta_down = state.delta if self.method.local.needs_delta and isinstance(state.delta, Tensor) else None
        cohort = self.clients_per_round
        sent = Sent(state.weights, state.buffers, state.counters, local_lr, delta_down, cohort)
        replies = self.engine.train(self._client_tasks(state.round), sent)

        # each takes K local steps and returns Δ_m = w_t − w_m; Δ_t = Σ p_m Δ_m over those that can be believed
        mean = _Mean(self.method.plan.requires, self.weighting)
        for reply in self._capped(replies) if self.norm_cap else replies:
            mean.add(reply)
        trained = time.perf_counter()

        # α_t and β_t+1 from Δ_t and Δ_t-1, then w_t+1 = w_t − α_t · direction(Δ_t)
        new, cos, norm = self._server_step(state, mean)
        stepped = time.perf_counter()
        self._state = new
        scores = self.evaluate() if evaluate else {"test_loss": None, "accuracy": None}
        done = time.perf_counter()

        payload = 4 * (state.weights.numel() + state.buffers.numel()) + 8 * state.counters.numel()
        down = payload + _SCALAR_BYTES + (0 if delta_down is None else 4 * delta_down.numel())
        record = {
            "round": new.round,
            "global_lr": new.plan.global_lr,
            **mean.rates(local_lr),
            "hypergrad": new.plan.hypergrad if state.round and "delta" in self.method.plan.requires else None,
            "cosine": cos,
            "update_norm": norm,
            "train_loss": mean.train_loss,
            **scores,
            "seconds_train": trained - started,
            "seconds_aggregate": stepped - trained,
            "seconds_evaluate": done - stepped,
            "bytes_up": mean.sent * (payload + 3 * _SCALAR_BYTES),
            "bytes_down": mean.sent * down,
            "clients_used": mean.used,
            "clients_rejected": mean.sent - mean.used,
            "reject_reasons": dict(sorted(mean.rejected.items())),
            "rollback": new.plan.rollback,
        }
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.items()}

    def _server_step(self, state: ServerState, mean: _Mean) -> tuple[ServerState, float | None, float | None]:
        delta = mean.delta()
        if delta is None:
            return self._lost(state), None, None
        plan = self.method.plan.update(state.plan, delta, loss=mean.first_loss, sq_norm=mean.sq_norm)
        cos = None if isinstance(state.delta, float) else float(cosine(delta, state.delta))
        norm = math.sqrt(float(inner(delta, delta)))
        if plan.rollback:
            back = state._replace(
                round=state.round + 1,
                weights=state.good,
                buffers=state.good_buffers,
                mean=state.good,
                mean_buffers=state.good_buffers,
                plan=plan,
                moments=self.method.server.init(),
                delta=0.0,
                idle_rounds=0,
            )
            return back, cos, norm
        if plan.momentum is not None and isinstance(self.method.server, Average):
            direction, moments = Momentum(momentum=plan.momentum).update(state.moments, delta)
        else:
            direction, moments = self.method.server.update(state.moments, delta)
            moments = moments if plan.settled else self.method.server.init()
        weights = state.weights - plan.global_lr * direction
        if not all_finite(weights):
            return self._lost(state), cos, norm
        buffers = mean.buffers(state.buffers)
        old, newest = (state.weights, 0.5) if self.method.average_last_two else (state.mean, plan.newest)
        new = ServerState(
            round=state.round + 1,
            weights=weights,
            buffers=buffers,
            counters=mean.counters(state.counters),
            plan=plan,
            moments=moments,
            delta=delta,
            mean=_moved(old, weights, newest),
            mean_buffers=_moved(state.mean_buffers, buffers, plan.newest),
            good=state.weights if plan.settled else state.good,
            good_buffers=state.buffers if plan.settled else state.good_buffers,
            carried_lr=mean.last_lr if self.carry else math.nan,
            idle_rounds=0,
        )
        return new, cos, norm

    def _lost(self, state: ServerState) -> ServerState:
        """A round without a usable update changes neither weights nor state; a plan may know what to do about it."""
        plan = self.method.plan.lost(state.plan)
        moments = self.method.server.init() if plan.rollback else state.moments
        return state._replace(round=state.round + 1, plan=plan, moments=moments, idle_rounds=state.idle_rounds + 1)

    def _client_tasks(self, t: int) -> list[ClientTask]:
        """Who trains in round ``t`` and on which batches, longest first: that balances the workers."""
        sizes = self.partition.sizes
        rng = generator(self.seed, "clients", t)
        if self.sampling == "uniform":
            chosen = rng.choice(len(sizes), self.clients_per_round, replace=False, shuffle=False)
        else:
            chosen = rng.choice(len(sizes), self.clients_per_round, replace=False, p=sizes / sizes.sum(), shuffle=False)
        ordered = sorted((int(client) for client in chosen), key=lambda client: (-int(sizes[client]), client))
        return [ClientTask(client, int(sizes[client]), self._batches(t, client)) for client in ordered]

    def _batches(self, t: int, client: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """The examples of every local step: epochs reshuffled, cut into batches, the last one of an epoch shorter."""
        own, rng = self.partition.client(client), generator(self.seed, "batches", t, client)

        def epochs() -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
            while True:
                order = rng.permutation(own)
                yield from (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))

        per_epoch = -(-len(own) // self.batch_size)
        steps = self.local_steps or self.local_epochs * per_epoch
        return [batch for batch, _ in zip(epochs(), range(steps), strict=False)]

    def _capped(self, replies: Iterator[Reply]) -> Iterator[Reply]:
        """Every update shortened to at most ``norm_cap`` × the median length; needs all of them at once."""
        usable = list(replies)
        norms = [math.sqrt(float(inner(r.delta, r.delta))) for r in usable]
        caps = iter(norm_caps([n for n in norms if math.isfinite(n)], self.norm_cap))
        for reply, norm in zip(usable, norms, strict=True):
            yield reply._replace(delta=reply.delta * next(caps)) if math.isfinite(norm) else reply

    def evaluate(self) -> dict[str, float]:
        """Mean loss and accuracy (a fraction) on the task's test set."""
        loss, accuracy = self.engine.evaluate(self._to_evaluate())
        return {"test_loss": loss, "accuracy": accuracy}

    def client_accuracy(self) -> list[float]:
        """The global model's accuracy on each client's own training data, in client order."""
        return self.engine.accuracy_by_client(self._to_evaluate(), self.partition)

    def _to_evaluate(self) -> Sent:
        state = self._state
        return Sent(state.mean, state.mean_buffers, state.counters, math.nan, None)

    def named_weights(self) -> dict[str, Tensor]:
        """What is evaluated, parameters and buffers by name, as ``model.load_state_dict`` takes them."""
        state, flat = self._state, self._flat
        named = {name: value.clone() for name, value in flat.named(state.mean).items()}
        named |= {piece.name: piece.view(state.mean_buffers).clone() for piece in flat.buffer_pieces}
        counters = {name: value.clone() for name, value in flat.counters.items()}
        scatter(state.counters, list(counters.values()))
        return named | counters

    def weights_sha256(self) -> str:
        """SHA-256 of w_t and its buffers, little-endian, in the standard order."""
        digest = hashlib.sha256()
        for tensor in (self._state.weights, self._state.buffers, self._state.counters):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def state(self) -> tuple[dict[str, Tensor], Any]:
        """Everything that changes, as tensors and JSON: what a checkpoint holds."""
        tensors: dict[str, Tensor] = {}
        values = to_plain(self._state, tensors, "state")
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Continue from ``state()``, to the same bits."""
        self._state = from_plain(values, tensors, self._state)

    def close(self) -> None:
        """End the workers."""
        self.engine.close()


def _moved(mean: Tensor, new: Tensor, share: float) -> Tensor:
    """mean + share · (new − mean); not torch.lerp, whose bits depend on how threads cut the vector."""
    return new if share == 1 else mean + share * (new - mean)


class _Mean:
    """The weighted mean of what clients sent, summed in float64 in the order in which they were asked."""

    def __init__(self, requires: frozenset[str], weighting: str) -> None:
        self.requires, self.weighting = requires, weighting
        self.sent = self.used = 0
        self.rejected: Counter[str] = Counter()
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._scalars = np.zeros(5)
        self._low, self._high = math.inf, -math.inf

    def add(self, reply: Reply) -> None:
        """Take one reply in, or count why not."""
        self.sent += 1
        reason = reject_reason(reply.delta, reply.delta, reply.examples)
        if reason is None and not all_finite(reply.buffers):
            reason = "non-finite statistics"
        if reason is not None:
            self.rejected[reason] += 1
            return
        self.used += 1
        share = float(reply.examples) if self.weighting == "examples" else 1.0
        self._total += share
        if not self._sums:
            self._sums = [torch.zeros_like(v, dtype=torch.float64) for v in (reply.delta, reply.buffers)]
            self._counters = reply.counters
        for total, vector in zip(self._sums, (reply.delta, reply.buffers), strict=True):
            total.add_(vector, alpha=share)
        self._counters = torch.maximum(self._counters, reply.counters)
        sq_norm = float(inner(reply.delta, reply.delta)) if "sq_norm" in self.requires else math.nan
        self._scalars += share * np.array([reply.first_loss, reply.mean_loss, sq_norm, reply.lr_mean, reply.lr_last])
        self._low, self._high = min(self._low, reply.lr_min), max(self._high, reply.lr_max)

    def _mean(self, i: int) -> float:
        return float(self._scalars[i] / self._total) if self._total else math.nan

    @property
    def first_loss(self) -> float:
        return self._mean(0)

    @property
    def train_loss(self) -> float:
        return self._mean(1)

    @property
    def sq_norm(self) -> float:
        return self._mean(2)

    @property
    def last_lr(self) -> float:
        return self._mean(4)

    def rates(self, sent: float) -> dict[str, float]:
        """Mean, lowest and highest local rate that was used; what was sent when nothing came back."""
        if not self.used:
            return {"local_lr": sent, "local_lr_min": sent, "local_lr_max": sent}
        mean = self._low if self._low == self._high else self._mean(3)  # the mean of equal numbers is that number
        return {"local_lr": mean, "local_lr_min": self._low, "local_lr_max": self._high}

    def delta(self) -> Tensor | None:
        """Δ_t = Σ p_m Δ_m in float32, or None when nobody could be believed."""
        return (self._sums[0] / self._total).float() if self.used else None

    def buffers(self, old: Tensor) -> Tensor:
        return (self._sums[1] / self._total).to(old.dtype)

    def counters(self, old: Tensor) -> Tensor:
        return self._counters if old.numel() else old
