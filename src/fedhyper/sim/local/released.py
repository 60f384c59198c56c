"""FedHyper-CL as its authors released it: another rule than the paper's, kept to compare with."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fedhyper.arrays import inner
from fedhyper.sim.local.step import LocalStep, Rate, Start, rows
from fedhyper.sim.registry import register_local


class ReleasedStep(LocalStep):
    """FedHyper-CL as the authors released it. With d = βg the step just taken, and r = β/β_t, which starts at 1:

        r ← clip(r · min(1.1, 1 + <d_k, d_k-1> + 0.1/M · <d_k, Δ_t-1>), 1/10, 10)

    used from the next step on. The first step of an epoch neither changes r nor is remembered; until one is, Δ_t-1
    stands for d_k-1. Theirs lets NaN raise the rate (min(1.1, nan) is 1.1 in Python); here it leaves it alone.
    """

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        delta = torch.zeros_like(grad) if self.start.delta is None else self.start.delta.expand(grad.shape)
        if self.steps == 0:
            self.initial, self.before = self.lr, delta
            self.lr = torch.full(grad.shape[:-1], self.lr, dtype=torch.float64, device=grad.device)
        rate, before = rows(self.lr, grad), rows(self.before, grad)
        step = grad * rate.to(grad.dtype).unsqueeze(-1)
        agreement = inner(step, before) + 0.1 / self.start.cohort * inner(step, delta)
        counted = self.steps % rows(torch.as_tensor(self.start.epoch_steps, device=grad.device), grad) > 0
        moved = rate * (1 + agreement).clamp(max=1.1)
        used = counted & torch.isfinite(agreement)
        self.lr = torch.where(used, moved.clamp(self.initial / 10, self.initial * 10), rate)
        self.before = torch.where(counted.unsqueeze(-1), step, before)
        return (float(rate) if grad.ndim == 1 else rate), grad


class ReleasedSGD(torch.optim.SGD):
    """The authors' released client rule in their terms: differences of parameters, after − before."""

    def __init__(self, parameters: list[nn.Parameter], start: Start) -> None:
        super().__init__(parameters, lr=start.lr)
        self.initial, self.ratio, self.taken = start.lr, 1.0, 0
        self.epoch_steps, self.cohort = start.epoch_steps, start.cohort
        vector = parameters_to_vector(parameters).detach()
        self.last_round = torch.zeros_like(vector) if start.delta is None else -start.delta.to(vector)
        self.last = self.last_round

    def step(self, closure: Any = None) -> Any:
        """A step of SGD, then the rate of the one after it."""
        loss = None if closure is None else closure()
        parameters = self.param_groups[0]["params"]
        before = parameters_to_vector(parameters).detach()
        self.param_groups[0]["lr"] = self.initial * self.ratio
        super().step()
        first_of_epoch = self.taken % self.epoch_steps == 0
        self.taken += 1
        if first_of_epoch:
            return loss
        moved = parameters_to_vector(parameters).detach() - before
        factor = 1 + float(moved.double() @ self.last.double())
        factor += 0.1 * float(moved.double() @ self.last_round.double()) / self.cohort
        if math.isfinite(factor):
            self.ratio = min(max(self.ratio * min(1.1, factor), 0.1), 10.0)
        self.last = moved
        return loss


register_local("released", fast=ReleasedStep, slow=ReleasedSGD)
