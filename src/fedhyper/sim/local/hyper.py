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
            return self.lr[: grad.shape[0]], grad
        self.before = grad
        return self.lr, grad

    def _stack_rate(self, grad: Tensor) -> Floats:
        """The rates of all clients of the stack, also of those that have finished.

        NumPy: its calls on a few numbers cost a third of torch's.
        """
        n = grad.shape[0]
        if self.before is None:
            self.rule = replace(self.rule, local_steps=self.start.local_steps.cpu().numpy())
            return np.full(n, self.lr)
        rule, before, delta = self.rule, self.before, self.start.delta
        if before.shape[0] != n:  # clients of the stack have finished
            before = before[:n]
        others = (before,) if delta is None or rule.global_term == "off" else (before, delta)
        products = (inner_rows if rule.hypergrad == "inner" else cosine_rows)(grad, *others)
        if len(self.lr) != n:  # whoever has finished stays in the row, where it costs nothing
            working, products = products, np.zeros((len(others), len(self.lr)))
            products[:, :n] = working
        h = rule.hypergradient(products[0], products[1] if len(others) > 1 else 0.0)
        if rule.apply != "add" or not math.isfinite(sum(h.tolist())):
            return rule.moved(self.lr, h)  # type: ignore[no-any-return]
        # the same numbers in three calls; those of ``moved`` for arrays of any kind take as long as a whole step
        low, high = rule.range
        moved = self.lr + rule.hyper_lr * h
        return np.minimum(np.maximum(moved, low, out=moved), high, out=moved)  # type: ignore[no-any-return]


def slow_hyper(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``fedhyper.client.HyperSGD``; its bound is around the initial rate, not the one that was sent."""
    settings = dict(start.settings)
    initial = settings.pop("lr")
    return HyperSGD(
        parameters, start.lr, initial_lr=initial, local_steps=start.local_steps, delta=start.delta, **settings
    )


register_local("hyper", fast=HyperStep, slow=slow_hyper)
