"""SGD at the rate the server sent: plain, with momentum 0.9, and with Nesterov's."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedhyper.sim.local.step import LocalStep, Rate, Start, rows
from fedhyper.sim.registry import register_local

MOMENTUM = 0.9


class MomentumStep(LocalStep):
    """v ← 0.9 v + g, fresh every round; the step is along v."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        if self.steps == 0:
            self.velocity = torch.zeros_like(grad)
        self.velocity = rows(self.velocity, grad)
        self.velocity.mul_(MOMENTUM).add_(grad)
        return self.lr, self.velocity


class NesterovStep(MomentumStep):
    """The same v; the step is along g + 0.9 v."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        lr, velocity = super().rate(grad, loss)
        return lr, grad.add(velocity, alpha=MOMENTUM)


def slow_sgd(parameters: list[nn.Parameter], start: Start, **momentum: float | bool) -> torch.optim.Optimizer:
    """``torch.optim.SGD``."""
    return torch.optim.SGD(parameters, lr=start.lr, weight_decay=start.weight_decay, **momentum)  # type: ignore[arg-type]


register_local("sgd", fast=LocalStep, slow=slow_sgd)
register_local("momentum", fast=MomentumStep, slow=partial(slow_sgd, momentum=MOMENTUM))
register_local("nesterov", fast=NesterovStep, slow=partial(slow_sgd, momentum=MOMENTUM, nesterov=True))
