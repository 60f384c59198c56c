"""Δ-SGD: each client's rate from the smoothness that its gradients show."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedhyper.arrays import inner
from fedhyper.client import DeltaSGD, delta_sgd_rate
from fedhyper.sim.local.step import LocalStep, Rate, Start, rows
from fedhyper.sim.registry import register_local


class DeltaStep(LocalStep):
    """Δ-SGD: no initial rate of ours; x_k − x_k−1 = −η_k−1 g_k−1, so no copy of the weights is kept."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        constants = dict(self.start.settings)
        eta0 = constants.pop("eta0")
        sq_norm = inner(grad, grad)
        if self.steps == 0:
            self.eta, self.theta = eta0 + 0.0 * sq_norm, 1.0 + 0.0 * sq_norm
        else:
            before, length, eta, theta = (rows(v, grad) for v in (self.before, self.length, self.eta, self.theta))
            turned = inner(grad - before, grad - before) ** 0.5
            self.eta, self.theta = delta_sgd_rate(eta, theta, eta * length, turned, **constants)
        self.before = grad
        self.length: Tensor = sq_norm**0.5
        return (float(self.eta) if grad.ndim == 1 else self.eta), grad


def slow_delta(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``fedhyper.client.DeltaSGD``."""
    return DeltaSGD(parameters, **start.settings)


register_local("delta", fast=DeltaStep, slow=slow_delta)
