"""What a client optimizer is, twice: fast on flat vectors, slow as a torch optimizer.

The fast one serves one client ``[d]``, or a stack of clients ``[n, d]`` that step together; its rates are floats for
one client and ``[n]`` tensors for a stack. The slow one is read to know what the fast one does; tests hold them equal.
Each rule is one file of this folder, which has both and registers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedhyper.sim.local.used import StackRates, Used
from fedhyper.sim.registry import LOCALS

if TYPE_CHECKING:
    from fedhyper.sim.methods import Local

Rate = Any  # float, or a tensor or NumPy array [n]


class Start(NamedTuple):
    """What a client knows when its round begins; for a stack, ``local_steps`` and ``epoch_steps`` have one a row."""

    lr: float  # β_t, the rate the server sent
    local_steps: Any  # K, the steps of this round
    epoch_steps: Any  # those of one pass over its data
    delta: Tensor | None = None  # Δ_t-1, flat, for the rules whose method has needs_delta
    cohort: int = 1  # M, how many clients the server asks
    settings: dict[str, Any] = {}  # noqa: RUF012  # those of the rule, from Local.settings; never written to
    proximal: float = 0.0  # FedProx's μ
    weight_decay: float = 0.0  # λ
    clip_norm: float = 0.0  # longest gradient; 0: any


SlowTwin = Callable[[list[nn.Parameter], Start], torch.optim.Optimizer]


class LocalStep:
    """Plain SGD, and what the others share: w ← w − β · direction, and before it, in this order, FedProx's pull, the
    clipped gradient, weight decay; and the record of the rates.

    A rule of your own overrides ``rate``. Clients of a stack are sorted by their number of steps; ``grad`` has the
    first n rows, those still at work, so whatever a rule remembers it reads with ``rows``.
    """

    def __init__(self, weights: Tensor, start: Start) -> None:
        self.weights, self.start = weights, start
        self.lr: Rate = start.lr
        self.origin = weights.clone() if start.proximal else None
        self.before: Any = None  # the gradient of the step before, for the rules that compare
        self.steps = 0
        self._rates: list[float] = []
        self._column = torch.empty(0, 1)  # a stack's rates, as the weights' arithmetic takes them
        self._stack_rates = StackRates(len(weights) if weights.ndim > 1 else 0)

    def step(self, grad: Tensor, loss: Rate) -> None:
        """One local step, in place."""
        if self.weights.shape != grad.shape:  # clients of the stack have finished
            self.weights = self.weights[: grad.shape[0]]
        weights = self.weights
        if self.origin is not None:
            grad.add_(weights - rows(self.origin, grad), alpha=self.start.proximal)
        if self.start.clip_norm:
            clip_(grad, self.start.clip_norm)
        if self.start.weight_decay:
            self.decay(grad)
        rate, direction = self.rate(grad, loss)
        self.steps += 1
        if grad.ndim == 1:
            self._rates.append(rate)
        else:
            self._stack_rates.add(grad.shape[0], rate)
        if isinstance(rate, float):
            weights.sub_(direction, alpha=rate)
        elif isinstance(rate, np.ndarray):
            if self._column.shape[0] != len(rate):
                self._column = torch.empty(len(rate), 1, dtype=weights.dtype)
                self._column_values = self._column.numpy()[:, 0]
            self._column_values[:] = rate
            weights.addcmul_(direction, self._column.to(weights.device), value=-1)
        else:
            weights.addcmul_(direction, rate.to(weights).unsqueeze(-1), value=-1)

    def rate(self, grad: Tensor, loss: Rate) -> tuple[Rate, Tensor]:
        """The rate of this step and the direction it is taken against.

        ``loss`` is the batch's: a float, or ``[n]`` in a stack, where it is None unless the rule ``needs_loss``.
        """
        return self.lr, grad

    def decay(self, grad: Tensor) -> None:
        """Weight decay as torch's SGD and Adam have it: the gradient of λ/2 · |w|² is added."""
        grad.add_(self.weights, alpha=self.start.weight_decay)

    def rates(self) -> list[float]:
        """Every rate that one client has used."""
        return self._rates

    def used(self, row: int) -> Used:
        """The mean, lowest, highest and last rate of the client ``row`` of a stack."""
        return self._stack_rates.of(row)


def rows(value: Tensor, grad: Tensor) -> Tensor:
    """``value`` for the clients still at work."""
    return value if grad.ndim == 1 else value[: len(grad)]


def clip_(grad: Tensor, longest: float) -> None:
    """Each client's gradient shortened to the length ``longest``, in place; as ``torch.nn.utils.clip_grad_norm_``."""
    grad.mul_((longest / (torch.linalg.vector_norm(grad, dim=-1, keepdim=True) + 1e-6)).clamp_(max=1.0))


def make_step(local: Local, weights: Tensor, start: Start) -> LocalStep:
    """The fast optimizer for ``weights`` ``[d]`` or ``[n, d]``."""
    return LOCALS.get(local.kind).fast(weights, _complete(local, start))


def make_optimizer(local: Local, parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """The slow one, for one client's parameters; what changes the gradient before it, FedProx's pull and clipping, is
    the caller's part."""
    return LOCALS.get(local.kind).slow(parameters, _complete(local, start))


def _complete(local: Local, start: Start) -> Start:
    return start._replace(
        settings=local.settings,
        proximal=local.proximal,
        weight_decay=local.weight_decay,
        clip_norm=local.clip_norm,
    )
