"""FedHyper-CL: the rate grows while gradients agree with the one before and with the last global step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedhyper.client import HyperSGD, hyper_rate
from fedhyper.client.vectors import inners_single
from fedhyper.guard import clamp
from fedhyper.schedulers import FedHyperCL
from fedhyper.sim.local.row_products import Floats, cosine_rows, inner_rows
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

    def _stack_rate(self, grad: Tensor) -> Floats:
        """The rates of the clients still at work: NumPy, whose calls on a few numbers cost a third of torch's."""
        n = grad.shape[0]
        if self.before is None:
            return np.full(n, self.lr)
        if len(self.lr) != n or self.steps == 1:  # clients of the stack have finished
            self.lr, self.before = self.lr[:n], self.before[:n]
            self.rule = replace(self.rule, local_steps=self.start.local_steps[:n].cpu().numpy())
        acts = self.start.delta is not None and self.rule.global_term != "off"
        others = (self.before, self.start.delta) if acts else (self.before,)
        along, *globally = (inner_rows if self.rule.hypergrad == "inner" else cosine_rows)(grad, *others)
        h = self.rule.hypergradient(along, globally[0] if acts else 0.0)
        if self.rule.apply != "add" or not math.isfinite(np.add.reduce(h)):
            return self.rule.moved(self.lr, h)  # type: ignore[no-any-return]
        # the same numbers in three calls; those of ``moved`` for arrays of any kind take as long as a whole step
        low, high = self.rule.range
        moved = self.lr + self.rule.hyper_lr * h
        return np.minimum(np.maximum(moved, low, out=moved), high, out=moved)  # type: ignore[no-any-return]


def slow_hyper(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``fedhyper.client.HyperSGD``; its bound is around the initial rate, not the one that was sent."""
    settings = dict(start.settings)
    initial = settings.pop("lr")
    return HyperSGD(
        parameters, start.lr, initial_lr=initial, local_steps=start.local_steps, delta=start.delta, **settings
    )


register_local("hyper", fast=HyperStep, slow=slow_hyper)
