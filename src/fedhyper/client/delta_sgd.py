"""Δ-SGD: each client's rate from the smoothness that its consecutive gradients show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fedhyper.arrays import Array, elementwise, isfinite, where
from fedhyper.client.constants import DeltaConstants
from fedhyper.client.previous_gradient import Params, Remembering, descend, evaluate, packed
from fedhyper.client.vectors import inner


def delta_sgd_rate(
    lr: Array,
    theta: Array,
    moved: Array,
    turned: Array,
    *,
    gamma: float = DeltaConstants.gamma,
    delta: float = DeltaConstants.delta,
) -> tuple[Array, Array]:
    """Δ-SGD: ``min(γ · moved / (2 · turned), √(1 + δθ) · lr)`` and the new θ = rate / lr; for numbers or arrays.

    lr      η_k-1, the rate of the step before, above 0
    theta   θ_k-1, how much that rate had grown; 1 at the first step
    moved   |x_k − x_k-1|, which is lr · |g_k-1| after a plain step
    turned  |g_k − g_k-1|

    Without movement, or with anything not finite, nothing is learned and both stay as they are.
    """
    most = lr * elementwise("sqrt", 1 + delta * theta)
    steeper = gamma * moved < 2 * turned * most  # compared before dividing: turned may be 0
    rate = where(steeper, gamma * moved / where(turned > 0, 2 * turned, 1.0), most)
    usable = isfinite(moved + turned + rate) & (moved > 0) & (rate > 0)
    return where(usable, rate, lr), where(usable, rate / lr, theta)


class DeltaSGD(Remembering):
    """Δ-SGD (Kim et al., ICLR 2024): the rate from the local smoothness that consecutive gradients show; no tuning.

        η_k = min(γ |x_k − x_k-1| / (2 |g_k − g_k-1|), √(1 + δ θ_k-1) η_k-1),    θ_k = η_k / η_k-1

    params  the parameters, or groups of them, as torch.optim takes them

    This is the paper's pseudocode: g_k and g_k-1 are the gradients as they come, each from its own batch. The
    authors' code runs a second backward at x_k-1 on the newest batch, at twice the cost.
    """

    def __init__(
        self,
        params: Params,
        *,
        gamma: float = DeltaConstants.gamma,
        delta: float = DeltaConstants.delta,
        eta0: float = DeltaConstants.eta0,
    ) -> None:
        DeltaConstants(gamma=gamma, delta=delta, eta0=eta0)  # refuses what is out of range
        super().__init__(params, {"lr": eta0, "gamma": gamma, "delta": delta, "theta": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; one rate for the whole model."""
        loss = evaluate(closure)
        grads, group, parameters = list(chain(*self.gradients())), self.param_groups[0], self._parameters()
        if not grads:
            return loss
        lr, theta, turned = group["lr"], group["theta"], 0.0
        packs = self.packs(parameters)
        new, old = packed(packs, grads, parameters), self.recall(packs)
        if old is not None:
            moved, turned = lr * _norm(old), _norm(torch._foreach_sub(new, old))
            lr, theta = delta_sgd_rate(lr, theta, moved, turned, gamma=group["gamma"], delta=group["delta"])
        for group in self.param_groups:
            group["lr"], group["theta"] = lr, theta
        if math.isfinite(turned):
            self.remember(packs, new)
        descend(parameters, grads, lr)
        return loss


def _norm(pieces: Sequence[Tensor]) -> float:
    return math.sqrt(inner(pieces, pieces))
