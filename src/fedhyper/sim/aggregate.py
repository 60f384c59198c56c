"""The weighted mean of what clients sent, over those that can be believed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedhyper.arrays import inner
from fedhyper.guard import all_finite, norm_caps, reject_reason
from fedhyper.loop import RoundReport
from fedhyper.sim.engines.base import Reply


class Aggregate:
    """The weighted mean of what clients sent, summed in float64 in the order in which they were asked."""

    def __init__(self, like: Tensor, requires: frozenset[str], weighting: str) -> None:
        self.like, self.requires, self.weighting = like, requires, weighting
        self.sent = self.used = 0
        self.rejected: Counter[str] = Counter()
        self._total = 0.0
        self._sums: list[Tensor] = []
        self._scalars = np.zeros(4)
        self._low, self._high = math.inf, -math.inf
        self._first: list[float] = []

    def add(self, reply: Reply) -> None:
        """Take one reply in, or count why not. An update must have the shape of ``like``."""
        self.sent += 1
        reason = reject_reason(reply.delta, self.like, reply.examples)
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
        self._scalars += share * np.array([reply.mean_loss, sq_norm, reply.lr_mean, reply.lr_last])
        self._first.append(reply.first_loss)
        self._low, self._high = min(self._low, reply.lr_min), max(self._high, reply.lr_max)

    def _mean(self, i: int) -> float:
        return float(self._scalars[i] / self._total) if self._total else math.nan

    def report(self, votes: tuple[tuple[int, float], ...] | None = None) -> RoundReport:
        """What the server's loop reads of the round; Δ_t = Σ p_m Δ_m in float32."""
        if not self.used:
            return RoundReport(refused=self.sent)
        delta, statistics = ((total / self._total).float() for total in self._sums)
        sq_norm = self._mean(1) if "sq_norm" in self.requires else None
        refused, climbed = self.sent - self.used, votes is not None
        return RoundReport(delta, tuple(self._first), sq_norm, statistics, refused, votes, climbed)

    @property
    def train_loss(self) -> float:
        """Mean over clients of the mean loss of their local steps."""
        return self._mean(0)

    @property
    def last_lr(self) -> float:
        """Mean of the clients' last rates."""
        return self._mean(3)

    def rates(self, sent: float) -> dict[str, float]:
        """Mean, lowest and highest local rate that was used; what was sent when nothing came back."""
        if not self.used:
            return {"local_lr": sent, "local_lr_min": sent, "local_lr_max": sent}
        mean = self._low if self._low == self._high else self._mean(2)  # the mean of equal numbers is that number
        return {"local_lr": mean, "local_lr_min": self._low, "local_lr_max": self._high}

    def counters(self, old: Tensor) -> Tensor:
        """The largest of the clients' counters; the old ones when there are none, or nobody could be believed."""
        return self._counters if old.numel() and self.used else old


def capped(replies: Iterator[Reply], norm_cap: float) -> Iterator[Reply]:
    """Every update shortened to at most ``norm_cap`` × the median length; needs all of them at once."""
    usable = list(replies)
    norms = [math.sqrt(float(inner(r.delta, r.delta))) for r in usable]
    caps = iter(norm_caps([n for n in norms if math.isfinite(n)], norm_cap))
    for reply, norm in zip(usable, norms, strict=True):
        yield reply._replace(delta=reply.delta * next(caps)) if math.isfinite(norm) else reply
