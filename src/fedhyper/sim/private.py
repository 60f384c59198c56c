"""The noisy mean of clipped updates, in place of ``Aggregate``; all that a private run lets its server see."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedhyper.loop import RoundReport
from fedhyper.privacy import Privacy
from fedhyper.sim.aggregate import Aggregate
from fedhyper.sim.engines.base import Reply, Sent


class PrivateAggregate(Aggregate):
    """Sums clipped updates, all alike, and adds the noise of round ``rng``.

    clip   C of this round
    usual  M, how many clients a round has on average; those that came are nobody's business
    """

    def __init__(self, asked: Sent, privacy: Privacy, clip: float, usual: int, rng: np.random.Generator) -> None:
        super().__init__(asked, frozenset(("delta",)))
        self.privacy, self.clip, self.usual, self.rng = privacy, clip, usual, rng
        self._below = 0

    def add(self, reply: Reply) -> None:
        """Clip one reply and take it in; one that cannot be believed adds nothing."""
        if tuple(reply.delta.shape) == tuple(self.asked.weights.shape) and bool(torch.isfinite(reply.delta).all()):
            delta, below = self.privacy.clipped(reply.delta, self.clip)
            self._below += below
            reply = reply._replace(delta=delta)
        super().add(reply._replace(examples=1))

    def report(self, votes: tuple[tuple[int, float], ...] | None = None) -> RoundReport:
        """Δ_t with its noise, also when nobody came, and votes that have theirs; losses and lengths are not told."""
        total = self._sums[0] if self._sums else torch.zeros_like(self.asked.weights, dtype=torch.float64)
        normal = torch.from_numpy(self.rng.standard_normal(self.asked.weights.numel()))
        delta = self.privacy.mean(total, normal, self.clip, self.usual).float()
        return RoundReport(delta, votes=votes, climbed=votes is not None)

    def next_clip(self) -> float:
        """C for the next round; after ``report``, whose noise is drawn first."""
        normal = float(self.rng.standard_normal())
        return self.privacy.next_clip(self.clip, self._below, self.used, normal, self.usual)

    @property
    def train_loss(self) -> float:
        """Unknown: the clients' losses have no noise."""
        return math.nan

    def rates(self, sent: float) -> dict[str, float]:
        """What was sent."""
        return {"local_lr": sent, "local_lr_min": sent, "local_lr_max": sent}
