"""FedHyper-CL: SGD that moves its own rate by hypergradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fedhyper.arrays import is_number
from fedhyper.client.previous_gradient import Params, Remembering, checked_rate, decayed, evaluate, packed
from fedhyper.client.vectors import cosine, inner, inners
from fedhyper.guard import clamp
from fedhyper.schedulers import FedHyperCL

Pieces = Sequence[Tensor]
_RULE = tuple(field.name for field in fields(FedHyperCL) if field.name != "lr")


def hyper_rate(
    rule: FedHyperCL,
    lr: float,
    grad: Pieces,
    before: Pieces | None = None,
    delta: Pieces | None = None,
    *,
    products: Callable[..., list[float]] = inners,
) -> tuple[float, float]:
    """FedHyper-CL on vectors in pieces, with the fast inner product: the rate to step with, and the hypergradient.

    rule      the settings, ``fedhyper.FedHyperCL``
    lr        the rate of the step before, above 0
    grad      g_k, a tensor for each parameter
    before    g_k-1 in the same form; None at step 0, where the rate stays
    delta     Δ_t-1 in the same form; None in the first round
    products  gives ``[<a, b>, <a, c>, ...]`` of ``(a, b, c, ...)``; default: the same bits for any number of threads

    A hypergradient that is not finite was ignored.
    """
    if before is None:
        return lr, 0.0 * inner(grad, grad)  # 0, or NaN: not a gradient to remember
    others = [before] if delta is None or rule.global_term == "off" else [before, delta]
    if rule.hypergrad == "inner":
        along, globally, *_ = [*products(grad, *others), 0.0]
    else:
        along, globally, *_ = [*(cosine(grad, other) for other in others), 0.0]
    h = float(rule.hypergradient(along, globally))
    return float(rule.moved(lr, h)), h


class HyperSGD(Remembering):
    """FedHyper-CL: SGD whose rate grows while gradients agree with the one before and with the last global step.

        β_k = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K),    w ← w − β_k g_k

    params        the parameters, or groups of them, as torch.optim takes them
    lr            the rate the server sent, above 0: step 0 uses exactly this one (moved into the bounds if outside)
    local_steps   K ≥ 1, this client's steps in this round; raising it gives Δ_t-1 less say in each step
    delta         Δ_t-1, the last global step (before − after): a flat tensor in the order of the parameters, a
                  sequence like the parameters, or None
    initial_lr    what the relative bound is around, if the server has moved ``lr`` since; None: ``lr``
    momentum      at least 0, as in torch.optim.SGD: share of the last step in the next one; raising it smooths the
                  steps. It does not enter the hypergradient
    weight_decay  λ ≥ 0, as in torch.optim.SGD; raising it keeps weights smaller. g then stands for g + λw, the gradient
                  of the penalised loss
    per_group     one rate for each parameter group, each from its own inner products; else one for the whole model

    The other settings are those of ``fedhyper.FedHyperCL``, which checks them.
    Each group also has "last_hypergrad" (NaN: ignored). A parameter without gradient counts as a gradient of zero.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.01,
        *,
        bound: float = 10.0,
        local_steps: int,
        delta: Tensor | Sequence[Tensor] | None = None,
        global_term: str = "add",
        epsilon: float = 0.1,
        hypergrad: str = "inner",
        apply: str = "add",
        bounds: str = "relative",
        hyper_lr: float = 1.0,
        initial_lr: float | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        per_group: bool = False,
    ) -> None:
        lr = checked_rate(lr)
        defaults = {
            "lr": lr,
            "initial_lr": lr if initial_lr is None else initial_lr,
            "bound": bound,
            "local_steps": local_steps,
            "global_term": global_term,
            "epsilon": epsilon,
            "hypergrad": hypergrad,
            "apply": apply,
            "bounds": bounds,
            "hyper_lr": hyper_lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "per_group": per_group,
            "last_hypergrad": 0.0,
        }
        super().__init__(params, defaults)
        for p, piece in _pieces(delta, self._parameters()).items():
            self.state[p]["delta"] = piece

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As ``torch.optim.Optimizer``; the rule's settings differ between groups only with ``per_group``."""
        group = dict(param_group)
        if "lr" in group:
            group["lr"] = checked_rate(group["lr"])
            if self.defaults["per_group"]:
                group.setdefault("initial_lr", group["lr"])
        for name in ("momentum", "weight_decay"):
            _check_not_negative(name, group.get(name, self.defaults[name]))
        _rule(self.defaults | group)
        super().add_param_group(group)
        self.param_groups[-1]["lr"] = _inside(self.param_groups[-1])

    def _shared(self) -> Iterable[str]:
        return () if self.defaults["per_group"] else ("lr", "initial_lr", *_RULE)

    def reset(self, lr: float | None = None, delta: Tensor | Sequence[Tensor] | None = None, **settings: Any) -> None:
        """Begin a round: the rate and Δ_t-1 the server sent, no previous gradient, no momentum.

        ``lr=None`` goes back to the initial rate. ``local_steps=`` and the rule's other settings may change, too.
        """
        lr = None if lr is None else checked_rate(lr)
        unknown = set(settings) - {"initial_lr", *_RULE}
        if unknown:
            raise ValueError(f"reset changes lr, delta, initial_lr, {', '.join(_RULE)}; not {min(unknown)}")
        for group in self.param_groups:
            _rule(group | settings)  # all or nothing
        pieces = _pieces(delta, self._parameters())
        for group in self.param_groups:
            group.update(settings, last_hypergrad=0.0)
            group["lr"] = group["initial_lr"] if lr is None else lr
            group["lr"] = _inside(group)
        self.state.clear()
        self._forget()
        for p, piece in pieces.items():
            self.state[p]["delta"] = piece

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; every rate is settled before any parameter moves."""
        loss = evaluate(closure)
        directions = [decayed(*pair) for pair in zip(self.param_groups, self.gradients(), strict=False)]
        if not directions:
            return loss
        if self.param_groups[0]["per_group"]:
            for group, mine in zip(self.param_groups, directions, strict=True):
                self._adapt([group], mine)
        else:
            self._adapt(self.param_groups, list(chain(*directions)))
        for group, mine in zip(self.param_groups, directions, strict=True):
            self._move(group, mine)
        return loss

    def _adapt(self, groups: list[dict[str, Any]], directions: list[Tensor | None]) -> None:
        """Set the rate that ``groups`` share."""
        if all(direction is None for direction in directions):
            return
        parameters = [p for group in groups for p in group["params"]]
        packs = self.packs(parameters)
        grad = packed(packs, directions, parameters)
        before = self.recall(packs)
        delta = None
        if any(pack.delta is not None for pack in packs):
            delta = [torch.zeros_like(g) if p.delta is None else p.delta for p, g in zip(packs, grad, strict=True)]
        lr, h = hyper_rate(_rule(groups[0]), _inside(groups[0]), grad, before, delta)
        for group in groups:
            group["lr"], group["last_hypergrad"] = lr, h
        if math.isfinite(h):  # else there is nothing to learn from it: the memory stays as it was
            self.remember(packs, grad)

    def _move(self, group: dict[str, Any], directions: list[Tensor | None]) -> None:
        moving = [(p, step) for p, step in zip(group["params"], directions, strict=True) if step is not None]
        if not moving:
            return
        parameters, steps = [p for p, _ in moving], [step for _, step in moving]
        if group["momentum"]:
            old = [(self.state[p]["momentum_buffer"], d) for p, d in moving if "momentum_buffer" in self.state[p]]
            if old:
                buffers = [buffer for buffer, _ in old]
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_add_(buffers, [d for _, d in old])
            for p, step in moving:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = step.clone()
            steps = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_add_(parameters, steps, alpha=-group["lr"])


def _check_not_negative(name: str, value: object) -> None:
    if not (is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"{name} must be a finite number, at least 0, got {value!r}")


@lru_cache(maxsize=64, typed=True)
def _cached_rule(*settings: Any) -> FedHyperCL:
    return FedHyperCL(**dict(zip(("lr", *_RULE), settings, strict=True)))


def _rule(group: dict[str, Any]) -> FedHyperCL:
    return _cached_rule(group["initial_lr"], *[group[name] for name in _RULE])  # checked once, not every step


def _inside(group: dict[str, Any]) -> float:
    """The live rate, within its bounds whoever set it."""
    return float(clamp(group["lr"], *_rule(group).range, keep=group["initial_lr"]))


def _pieces(delta: Tensor | Sequence[Tensor] | None, parameters: list[Tensor]) -> dict[Tensor, Tensor]:
    """``delta`` by parameter, each piece a copy in its parameter's dtype, device and layout."""
    if delta is None:
        return {}
    shapes = [tuple(p.shape) for p in parameters]
    if isinstance(delta, Tensor):
        size = sum(p.numel() for p in parameters)
        if delta.shape != (size,):
            raise ValueError(f"delta must have the parameters' {size} numbers, flat, got shape {tuple(delta.shape)}")
        flat = torch.split(delta.detach(), [p.numel() for p in parameters])
        delta = [piece.view(shape) for piece, shape in zip(flat, shapes, strict=True)]
    given = [tuple(piece.shape) for piece in delta]
    if given != shapes:
        raise ValueError(f"delta must have pieces shaped like the parameters, {shapes}, got {given}")
    pieces = {p: torch.empty_like(p).copy_(x.detach()) for p, x in zip(parameters, delta, strict=True)}
    if not all(bool(piece.isfinite().all()) for piece in pieces.values()):
        raise ValueError("delta must be finite, got NaN or infinity; use delta=None to train without the global term")
    return pieces
