"""``HyperServer``: the server loop in the place of a server optimizer.

    NVFlare   FedOptRecipe(optimizer_args={"path": "fedhyper.torch.HyperServer", "args": {"lr": 1.0}}, ...)
    pfl       FederatedAveraging ... central_optimizer=HyperServer(model.parameters())
    FedML     server_optimizer: HyperServer        after import fedhyper.torch

All three put Δ = before − after, averaged over the clients, into ``param.grad`` and call ``step()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from fedhyper.averages import Model
from fedhyper.optimizers import Momentum
from fedhyper.plan import Pair, Plan
from fedhyper.schedulers import FedHyperG
from fedhyper.server import Server


class HyperServer(Optimizer):
    """FedHyper-G: the global rate follows the clients' mean update. ``param_groups[i]["lr"]`` is the rate in force.

    params    the global model's parameters, as torch.optim takes them; one rate for all of them
    lr        the initial global rate, above 0; raising it makes the first steps longer
    momentum  from 0 to below 1: share of the last step in the next one; raising it makes steps smoother
    plan      decides the rate in place of FedHyper-G and brings its own initial rate; None: FedHyper-G
    rule      the other settings of ``fedhyper.FedHyperG``: bound, bounds, hypergrad, apply, hyper_lr

    A round whose mean is not finite changes nothing. A parameter without gradient counts as an update of zero; without
    any gradient there was no round. The rate is not for others to set: a torch LR scheduler is refused.
    ``state_dict()`` has everything: engines that load it into a new optimizer each round (FedML) get the same bits.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1.0, momentum: float = 0.0, *, plan: Plan | None = None, **rule: Any
    ) -> None:
        if plan is not None and rule:
            raise ValueError(f"{min(rule)} is a setting of FedHyper-G; leave it out where a plan is given")
        chosen = Pair(global_rule=FedHyperG(lr=lr, **rule)) if plan is None else plan
        super().__init__(params, {"lr": lr})
        self.server = Server(self._weights(), chosen, optimizer=Momentum(momentum=momentum) if momentum else None)
        self._show_rate()

    @property
    def local_lr(self) -> float:
        """The plan's rate for the clients of the next round, for hosts that can send one."""
        return self.server.local_lr

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One round, with Δ in the gradients. ``closure()`` gives the clients' mean loss at the weights they were sent.

        The loss comes back. No engine gives one; a plan that judges the weights then does without.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if group["lr"] != self.server.global_lr:
                found = f"{group['lr']!r} where {self.server.global_lr!r} was left"
                raise ValueError(f"lr is HyperServer's own to set, got {found}; leave the LR scheduler out")
        parameters = self._parameters()
        if all(p.grad is None for p in parameters):
            return loss
        # Copies: zero_grad and the step below write into what the state keeps for the next round. And whoever runs the
        # rounds has the last word on the weights, so they are read each time.
        delta = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
        state, now = self.server.state, Model(self._weights())
        self.server.state = state._replace(now=now, mean=now if state.mean is state.now else state.mean)
        self.server.step(delta, loss=None if loss is None else float(loss))
        for p, new in zip(parameters, self.server.weights, strict=True):
            p.copy_(new)
        self._show_rate()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As torch.optim has it, and ``loop``: the state of the server loop, plain numbers, strings and tensors."""
        return {**super().state_dict(), "loop": self.server.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of a HyperServer with the same settings."""
        if "loop" not in state_dict:
            raise ValueError("this is not the state of a HyperServer: it has no loop; give what state_dict() gave")
        super().load_state_dict(state_dict)
        self.server.load_state_dict(state_dict["loop"])
        self._show_rate()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "server": self.server}

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._parameters()]

    def _show_rate(self) -> None:
        for group in self.param_groups:
            group["lr"] = self.server.global_lr
