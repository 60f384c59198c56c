"""FedSPS: each client's rate from its loss and its gradient, the stochastic Polyak step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from fedhyper.arrays import Array, isfinite, where
from fedhyper.client.constants import PolyakConstants
from fedhyper.client.previous_gradient import Params, Remembering, checked_rate, descend, evaluate
from fedhyper.client.vectors import inner


def polyak_rate(
    loss: Array, sq_norm: Array, *, lr: float, c: float = PolyakConstants.c, floor: float = PolyakConstants.floor
) -> Array:
    """FedSPS: ``min((loss − floor) / (c · sq_norm), lr)`` with sq_norm = |g|², for numbers or arrays of them.

    loss     F(x_k), of the batch
    sq_norm  |g_k|², of its gradient
    lr       the highest rate allowed, above 0; raising it allows longer steps

    0 where the loss is below ``floor``, and where either is not finite: there is no step to believe in.
    """
    gap = loss - floor
    short = gap < lr * c * sq_norm  # compared before dividing: sq_norm may be 0
    rate = where(short, gap / where(short & (sq_norm > 0), c * sq_norm, 1.0), lr)
    return where(isfinite(loss + sq_norm) & (gap > 0), rate, 0.0)


class PolyakSGD(Remembering):
    """FedSPS (Mukherjee et al., 2023): the stochastic Polyak step, ``η = min((F − F*) / (c |g|²), lr)``.

    params  the parameters, or groups of them, as torch.optim takes them
    lr      the highest rate allowed, above 0; ``param_groups[i]["lr"]`` is the one used last, "max_lr" this one

    The loss comes with ``step(closure)`` or ``step(loss=loss.item())``.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        *,
        c: float = PolyakConstants.c,
        floor: float = PolyakConstants.floor,
    ) -> None:
        lr = checked_rate(lr)
        PolyakConstants(c=c, floor=floor)  # refuses what is out of range
        super().__init__(params, {"lr": lr, "max_lr": lr, "c": c, "floor": floor})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """One step; one rate for the whole model."""
        loss = evaluate(closure) if closure is not None else loss
        if loss is None:
            raise ValueError("PolyakSGD needs the loss; call step(closure), or step(loss=loss.item())")
        grads, group = list(chain(*self.gradients())), self.param_groups[0]
        if not grads:
            return loss
        grad = [g for g in grads if g is not None]
        lr = polyak_rate(float(loss), inner(grad, grad), lr=group["max_lr"], c=group["c"], floor=group["floor"])
        for group in self.param_groups:
            group["lr"] = lr
        descend(self._parameters(), grads, lr)
        return loss
