"""FedSPS: the stochastic Polyak step, from the loss of each batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedhyper.arrays import inner
from fedhyper.client import PolyakSGD, polyak_rate
from fedhyper.sim.local.step import LocalStep, Rate, Start
from fedhyper.sim.registry import register_local


class PolyakStep(LocalStep):
    """FedSPS: the Polyak step (F − F*) / (c |g|²), at most the rate that was sent."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        sq_norm = inner(grad, grad)
        if grad.ndim == 1:
            return float(polyak_rate(loss, float(sq_norm), lr=self.lr, **self.start.settings)), grad
        return polyak_rate(loss.double(), sq_norm, lr=self.lr, **self.start.settings), grad


def slow_polyak(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``fedhyper.client.PolyakSGD``."""
    return PolyakSGD(parameters, lr=start.lr, **start.settings)


register_local("polyak", fast=PolyakStep, slow=slow_polyak, needs_loss=True)
