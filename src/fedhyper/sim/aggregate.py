"""The mean of what clients sent, over those that can be believed, and no further than they can be believed."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from statistics import median_low

import numpy as np
import torch
from torch import Tensor

from fedhyper.arrays import inner
from fedhyper.guard import ENDLESS, all_finite, bounded, fair_weights, judging_weights, not_against, reject_reason
from fedhyper.loop import RoundReport
from fedhyper.sim.engines.base import Reply, Sent
from fedhyper.sim.robust import Kind, robust

_IN_MEMORY = 1 << 30  # bytes of updates that are held at once; beyond, they go to disk


class Aggregate:
    """The mean of what clients sent, weighted, summed in float64 in the order in which they were asked.

    asked      what the clients were sent: what they send back must have its shape
    requires   what the plan reads, see ``Plan.requires``
    kind       "mean"; or one that holds against some hostile clients, weighs all alike, and keeps every update
    norm_cap   |Δ_m|² counts up to its square, in medians; 0: whatever it is
    """

    def __init__(self, asked: Sent, requires: frozenset[str], kind: Kind = "mean", norm_cap: float = 0.0) -> None:
        self.asked, self.requires, self.kind, self.norm_cap = asked, requires, kind, norm_cap
        self.sent = self.used = 0
        self.rejected: Counter[str] = Counter()
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._kept: list[Reply] = []
        self._shares: list[float] = []
        self._scalars: list[tuple[float, float, float, float]] = []
        self._low, self._high = math.inf, -math.inf
        self._first: list[float] = []
        self._counters: list[Tensor] = []

    def add(self, reply: Reply) -> None:
        """Take one reply in, or count why not."""
        self.sent += 1
        reason = refusal(reply, self.asked)
        if reason is not None:
            self.rejected[reason] += 1
            return
        self.used += 1
        share = float(reply.examples)
        self._total += share
        if not self._sums:
            self._sums = [torch.zeros_like(v, dtype=torch.float64) for v in (reply.delta, reply.buffers)]
        if self.kind == "mean":
            for total, vector in zip(self._sums, (reply.delta, reply.buffers), strict=True):
                total.add_(vector, alpha=share)
        else:
            self._kept.append(reply)
        self._counters.append(reply.counters)
        sq_norm = float(inner(reply.delta, reply.delta)) if "sq_norm" in self.requires else math.nan
        self._shares.append(share)
        self._scalars.append((reply.mean_loss, sq_norm, reply.lr_mean, reply.lr_last))
        self._first.append(reply.first_loss)
        if math.isfinite(reply.lr_min) and math.isfinite(reply.lr_max):
            self._low, self._high = min(self._low, reply.lr_min), max(self._high, reply.lr_max)

    def _mean(self, i: int, most: float = math.inf) -> float:
        """The weighted mean of a number that clients report; none counts for more than ``most`` medians of it."""
        values = [row[i] for row in self._scalars]
        values = bounded(values, most) if most < math.inf else values
        known = [(share, value) for share, value in zip(self._shares, values, strict=True) if math.isfinite(value)]
        total = weight = 0.0
        for share, value in known:  # one after the other: math.fsum would have other bits than a run had before
            total, weight = total + share * value, weight + share
        return total / weight if known else math.nan

    def report(self, votes: tuple[tuple[int, float], ...] | None = None) -> RoundReport:
        """What the server's loop reads of the round, once; Δ_t = Σ p_m Δ_m in float32."""
        if not self.used:
            return RoundReport(refused=self._endless)
        if self.kind == "mean":
            delta, statistics = ((total / self._total).float() for total in self._sums)
        else:
            delta, statistics = robust(self.kind, [r.delta for r in self._kept], [r.buffers for r in self._kept])
        self._sums, self._kept = [], []  # a start keeps its rounds for a while
        sq_norm = self._mean(1, self.norm_cap**2 or math.inf) if "sq_norm" in self.requires else None
        climbed = votes is not None
        return RoundReport(delta, tuple(self._first), sq_norm, statistics, self._endless, votes, climbed)

    @property
    def _endless(self) -> int:
        return self.rejected[ENDLESS] + self.rejected[f"{ENDLESS} statistics"]

    @property
    def train_loss(self) -> float:
        """Mean over clients of the mean loss of their local steps. It is shown, and decides nothing."""
        return self._mean(0)

    @property
    def last_lr(self) -> float:
        """The middle one of the clients' last rates, which with ``carry`` is where the next round begins."""
        known = [row[3] for row in self._scalars if math.isfinite(row[3])]
        return median_low(known) if known else math.nan

    def rates(self, sent: float) -> dict[str, float]:
        """Mean, lowest and highest local rate that was used; what was sent when nothing came back."""
        if not self.used or self._low > self._high:
            return {"local_lr": sent, "local_lr_min": sent, "local_lr_max": sent}
        mean = self._low if self._low == self._high else self._mean(2)  # the mean of equal numbers is that number
        return {"local_lr": mean, "local_lr_min": self._low, "local_lr_max": self._high}

    def counters(self, old: Tensor) -> Tensor:
        """The lower median of the clients' counters; the old ones when there are none, or nobody could be believed. The
        largest would be whatever one client says."""
        return torch.stack(self._counters).median(dim=0).values if old.numel() and self.used else old


def refusal(reply: Reply, asked: Sent) -> str | None:
    """Why a reply to what was ``asked`` must not enter the mean, or None when it may."""
    reason = reject_reason(reply.delta, asked.weights, reply.examples)
    for name, theirs, ours in (
        ("statistics", reply.buffers, asked.buffers),
        ("counters", reply.counters, asked.counters),
    ):
        if reason is None and theirs.shape != ours.shape:
            reason = f"{name} of shape {tuple(theirs.shape)}, expected {tuple(ours.shape)}"
    return f"{ENDLESS} statistics" if reason is None and not all_finite(reply.buffers) else reason


def judged(replies: Iterator[Reply], asked: Sent, norm_cap: float) -> Iterator[Reply]:
    """The replies, each with the weight that ``fedhyper.guard`` leaves it; all of them are held at once.

    One that will be refused anyway is passed on as it is, and has no say in what is usual. A reply has one weight for
    all that it sends: one whose statistics lie far off, which no training step shows, loses as much as for its update.
    """
    held, sound, squares = list[Reply](), list[int](), list[float]()
    for i, reply in enumerate(_held(replies)):  # one by one: worker processes train the next ones meanwhile
        held.append(reply)
        if refusal(reply, asked) is None:
            sound.append(i)
            squares.append(float(inner(reply.delta, reply.delta)))
    claimed = [float(held[i].examples) for i in sound]
    norms = [math.sqrt(square) for square in squares]
    fair = fair_weights(claimed, norms, norm_cap)
    if asked.buffers.numel():
        drifts = [held[i].buffers.double() - asked.buffers.double() for i in sound]
        drifted = fair_weights(claimed, [float(drift.norm()) for drift in drifts], norm_cap)
        fair = list(map(min, fair, drifted))
    total = torch.zeros_like(asked.weights, dtype=torch.float64)
    for i, weight in zip(sound, judging_weights(fair, norms), strict=True):
        total.add_(held[i].delta, alpha=weight)
    along = [float(inner(held[i].delta, total)) for i in sound]
    for i, weight in zip(sound, not_against(fair, squares, along), strict=True):
        held[i] = held[i]._replace(examples=weight)
    return iter(held)


def _held(replies: Iterator[Reply]) -> Iterator[Reply]:
    """The replies; what they have beyond ``_IN_MEMORY`` bytes together lies in files without a name until then."""
    total = 0
    for reply in replies:
        total += reply.delta.nbytes
        yield reply if total <= _IN_MEMORY else reply._replace(delta=_on_disk(reply.delta))


def _on_disk(vector: Tensor) -> Tensor:
    with tempfile.TemporaryFile() as file:
        file.write(vector.numpy().data)  # not through the mapping: a full disk is an error here, and a signal there
        file.flush()
        return torch.from_numpy(np.memmap(file, vector.numpy().dtype, mode="c"))
