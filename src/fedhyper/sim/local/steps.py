"""The clients' optimizers on flat vectors: one client ``[d]``, or a stack of clients ``[n, d]`` that step together.

The slow twins are ``torch.optim`` and ``fedhyper.client``; tests hold the two equal. Rates are floats for one client
and ``[n]`` tensors for a stack.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedhyper.arrays import inner
from fedhyper.client import delta_sgd_rate, hyper_rate, polyak_rate
from fedhyper.client.vectors import inners_single
from fedhyper.guard import clamp
from fedhyper.schedulers import FedHyperCL, LRState
from fedhyper.sim.methods import Local

Rate = Any  # float, or a tensor [n]


class LocalStep:
    """Plain SGD, and what the others share: w ← w − β · direction, FedProx's pull, and the record of the rates.

    Clients of a stack are sorted by their number of steps; ``grad`` has the first n rows, those still at work.
    """

    def __init__(
        self,
        local: Local,
        weights: Tensor,
        lr: float,
        local_steps: Any,
        epoch_steps: Any,
        delta: Tensor | None,
        cohort: int,
    ) -> None:
        self.local, self.weights = local, weights
        self.lr: Rate = lr
        self.start = weights.clone() if local.proximal else None
        self.local_steps, self.epoch_steps, self.delta, self.cohort = local_steps, epoch_steps, delta, cohort
        self.before: Any = None  # the gradient of the step before, for the rules that compare
        self.steps = 0
        self._rates: list[Rate] = []

    def step(self, grad: Tensor, loss: Rate) -> None:
        """One local step, in place."""
        if self.weights.shape != grad.shape:  # clients of the stack have finished
            self.weights = self.weights[: len(grad)]
        weights = self.weights
        if self.start is not None:
            grad.add_(weights - _rows(self.start, grad), alpha=self.local.proximal)
        rate, direction = self.rate(grad, loss)
        self._rates.append(rate)
        self.steps += 1
        if isinstance(rate, float):
            weights.sub_(direction, alpha=rate)
        else:
            weights.addcmul_(direction, rate.to(weights.dtype).unsqueeze(-1), value=-1)

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        """The rate of this step and the direction it is taken against."""
        return self.lr, grad

    def rates(self, row: int | None = None) -> list[float]:
        """Every rate one client has used: those of ``row`` in a stack."""
        return [
            rate if isinstance(rate, float) else float(rate[row])
            for rate in self._rates
            if isinstance(rate, float) or row is None or row < len(rate)
        ]


class HyperStep(LocalStep):
    """FedHyper-CL: the rule of ``schedulers``, fed gradient by gradient."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rule = FedHyperCL(local_steps=self.local_steps, **self.local.settings)
        self.lr = clamp(self.lr, *self.rule.range, keep=self.lr)

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        if grad.ndim == 1:
            before, delta = ([v] if v is not None else None for v in (self.before, self.delta))
            self.lr, _ = hyper_rate(self.rule, self.lr, [grad], before, delta, products=inners_single)
        else:
            self.lr = self._stack_rate(grad)
        self.before = grad
        return self.lr, grad

    def _stack_rate(self, grad: Tensor) -> Tensor:
        n = len(grad)
        rule = replace(self.rule, local_steps=self.local_steps[:n])
        lr = torch.full((n,), self.lr, dtype=torch.float64, device=grad.device) if self.before is None else self.lr[:n]
        state = LRState(lr, 0.0 if self.before is None else self.before[:n])
        return rule.update(state, grad, 0.0 if self.delta is None else self.delta.expand(n, -1)).lr  # type: ignore[no-any-return]


class ReleasedStep(LocalStep):
    """FedHyper-CL as the authors released it. With d = βg the step just taken, and r = β/β_t, which starts at 1:

        r ← clip(r · min(1.1, 1 + <d_k, d_k-1> + 0.1/M · <d_k, Δ_t-1>), 1/10, 10)

    used from the next step on. The first step of an epoch neither changes r nor is remembered; until one is, Δ_t-1
    stands for d_k-1. Theirs lets NaN raise the rate (min(1.1, nan) is 1.1 in Python); here it leaves it alone.
    """

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        delta = torch.zeros_like(grad) if self.delta is None else self.delta.expand(grad.shape)
        if self.steps == 0:
            self.initial, self.before = self.lr, delta
            self.lr = torch.full(grad.shape[:-1], self.lr, dtype=torch.float64, device=grad.device)
        rate, before = _rows(self.lr, grad), _rows(self.before, grad)
        step = grad * rate.to(grad.dtype).unsqueeze(-1)
        agreement = inner(step, before) + 0.1 / self.cohort * inner(step, delta)
        counted = self.steps % _rows(torch.as_tensor(self.epoch_steps, device=grad.device), grad) > 0
        moved = rate * (1 + agreement).clamp(max=1.1)
        used = counted & torch.isfinite(agreement)
        self.lr = torch.where(used, moved.clamp(self.initial / 10, self.initial * 10), rate)
        self.before = torch.where(counted.unsqueeze(-1), step, before)
        return (float(rate) if grad.ndim == 1 else rate), grad


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


class DeltaStep(LocalStep):
    """Δ-SGD: no initial rate of ours; x_k − x_k−1 = −η_k−1 g_k−1, so no copy of the weights is kept."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        constants = dict(self.local.settings)
        eta0 = constants.pop("eta0", 0.2)
        sq_norm = inner(grad, grad)
        if self.steps == 0:
            self.eta, self.theta = eta0 + 0.0 * sq_norm, 1.0 + 0.0 * sq_norm
        else:
            before, length, eta, theta = (_rows(v, grad) for v in (self.before, self.length, self.eta, self.theta))
            turned = inner(grad - before, grad - before) ** 0.5
            self.eta, self.theta = delta_sgd_rate(eta, theta, eta * length, turned, **constants)
        self.before = grad
        self.length: Tensor = sq_norm**0.5
        return (float(self.eta) if grad.ndim == 1 else self.eta), grad


class PolyakStep(LocalStep):
    """FedSPS: the Polyak step (F − F*) / (c |g|²), at most the rate that was sent."""

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        sq_norm = inner(grad, grad)
        if grad.ndim == 1:
            return float(polyak_rate(loss, float(sq_norm), lr=self.lr, **self.local.settings)), grad
        return polyak_rate(loss.double(), sq_norm, lr=self.lr, **self.local.settings), grad


def _rows(value: Tensor, grad: Tensor) -> Tensor:
    """``value`` for the clients still at work."""
    return value if grad.ndim == 1 else value[: len(grad)]


_STEPS: dict[str, type[LocalStep]] = {
    "sgd": LocalStep,
    "hyper": HyperStep,
    "released": ReleasedStep,
    "adam": AdamStep,
    "delta": DeltaStep,
    "polyak": PolyakStep,
}


def make_step(
    local: Local, weights: Tensor, lr: float, local_steps: Any, epoch_steps: Any, delta: Tensor | None, cohort: int
) -> LocalStep:
    """The optimizer for ``weights`` ``[d]`` or ``[n, d]``; ``local_steps`` is K, ``epoch_steps`` those of one pass over
    the data, for a stack one a row; ``cohort`` is M.
    """
    return _STEPS[local.kind](local, weights, lr, local_steps, epoch_steps, delta, cohort)
