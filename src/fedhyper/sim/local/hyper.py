"""FedHyper-CL: the rate grows while gradients agree with the one before and with the last global step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedhyper.client import HyperSGD, hyper_rate
from fedhyper.client.vectors import inners_single
from fedhyper.guard import clamp
from fedhyper.schedulers import FedHyperCL, LRState
from fedhyper.sim.local.step import LocalStep, Rate, Start
from fedhyper.sim.registry import register_local


class HyperStep(LocalStep):
    """FedHyper-CL: the rule of ``schedulers``, fed gradient by gradient."""

    def __init__(self, weights: Tensor, start: Start) -> None:
        super().__init__(weights, start)
        self.rule = FedHyperCL(local_steps=self.start.local_steps, **self.start.settings)
        self.lr = clamp(self.lr, *self.rule.range, keep=self.lr)

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        if grad.ndim == 1:
            before, delta = ([v] if v is not None else None for v in (self.before, self.start.delta))
            self.lr, _ = hyper_rate(self.rule, self.lr, [grad], before, delta, products=inners_single)
        else:
            self.lr = self._stack_rate(grad)
        self.before = grad
        return self.lr, grad

    def _stack_rate(self, grad: Tensor) -> Tensor:
        n = len(grad)
        if len(self.rule.local_steps) != n:  # clients of the stack have finished
            self.rule = replace(self.rule, local_steps=self.start.local_steps[:n])
        lr = torch.full((n,), self.lr, dtype=torch.float64, device=grad.device) if self.before is None else self.lr[:n]
        state = LRState(lr, 0.0 if self.before is None else self.before[:n])
        return self.rule.update(state, grad, 0.0 if self.start.delta is None else self.start.delta.expand(n, -1)).lr  # type: ignore[no-any-return]


def slow_hyper(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``fedhyper.client.HyperSGD``; its bound is around the initial rate, not the one that was sent."""
    settings = dict(start.settings)
    initial = settings.pop("lr")
    return HyperSGD(
        parameters, start.lr, initial_lr=initial, local_steps=start.local_steps, delta=start.delta, **settings
    )


register_local("hyper", fast=HyperStep, slow=slow_hyper)
