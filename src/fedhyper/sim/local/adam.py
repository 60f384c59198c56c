"""Adam and AdamW on each client, fresh every round."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedhyper.sim.local.step import LocalStep, Rate, Start
from fedhyper.sim.registry import register_local


class AdamStep(LocalStep):
    """Local Adam with torch's defaults (0.9, 0.999, 1e-8), fresh every round."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        if self.steps == 0:
            self.mean, self.square = torch.zeros_like(grad), torch.zeros_like(grad)
        n, k = len(grad), self.steps + 1
        self.mean, self.square = self.mean[:n], self.square[:n]
        self.mean.lerp_(grad, 0.1)
        self.square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        scale = (self.square.sqrt() / math.sqrt(1 - 0.999**k)).add_(1e-8)
        return self.lr, self.mean / scale.mul_(1 - 0.9**k)


class AdamWStep(AdamStep):
    """Adam whose weight decay is a step of its own, w ← (1 − βλ) w, and no part of the gradient."""

    def decay(self, grad: Tensor) -> None:
        self.weights.mul_(1 - self.lr * self.start.weight_decay)


def slow_adam(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``torch.optim.Adam``."""
    return torch.optim.Adam(parameters, lr=start.lr, weight_decay=start.weight_decay)


def slow_adamw(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``torch.optim.AdamW``."""
    return torch.optim.AdamW(parameters, lr=start.lr, weight_decay=start.weight_decay)


register_local("adam", fast=AdamStep, slow=slow_adam)
register_local("adamw", fast=AdamWStep, slow=slow_adamw)
