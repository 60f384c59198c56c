"""Optimizers for a client's local training, in place of ``torch.optim.SGD``: they set their own rate.

    HyperSGD    FedHyper-CL   β_k = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K)
    DeltaSGD    Δ-SGD         η_k = min(γ |x_k − x_k-1| / (2 |g_k − g_k-1|), √(1 + δ θ_k-1) η_k-1),  θ_k = η_k / η_k-1
    PolyakSGD   FedSPS        η_k = min((F(x_k) − F*) / (c |g_k|²), lr)

``param_groups[i]["lr"]`` is the rate of the last step. A rate is computed before any parameter moves, and is never NaN:
what cannot be used leaves it where it was. The step itself is torch's: a gradient that is not finite spoils the
weights, as with ``torch.optim.SGD``, and the server sees that and drops the update. See docs/client.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fedhyper.arrays import Array, elementwise, is_number, isfinite, where
from fedhyper.client.previous_gradient import Params, Remembering, decayed, descend, evaluate, packed
from fedhyper.client.vectors import cosine, inner, inners
from fedhyper.guard import check_positive, clamp
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

    ``before`` is None at step 0, ``delta`` in the first round. A hypergradient that is not finite was ignored.
    ``products`` gives ``[<a, b>, <a, c>, ...]`` of ``(a, b, c, ...)``.
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


def delta_sgd_rate(
    lr: Array, theta: Array, moved: Array, turned: Array, *, gamma: float = 2.0, delta: float = 0.1
) -> tuple[Array, Array]:
    """Δ-SGD: ``min(γ · moved / (2 · turned), √(1 + δθ) · lr)`` and the new θ = rate / lr; for numbers or arrays.

    moved = |x_k − x_k-1| (= lr · |g_k-1| after a plain step), turned = |g_k − g_k-1|. Without movement, or with
    anything not finite, nothing is learned and both stay as they are.
    """
    most = lr * elementwise("sqrt", 1 + delta * theta)
    steeper = gamma * moved < 2 * turned * most  # compared before dividing: turned may be 0
    rate = where(steeper, gamma * moved / where(turned > 0, 2 * turned, 1.0), most)
    usable = isfinite(moved + turned + rate) & (moved > 0) & (rate > 0)
    return where(usable, rate, lr), where(usable, rate / lr, theta)


def polyak_rate(loss: Array, sq_norm: Array, *, lr: float, c: float = 0.5, floor: float = 0.0) -> Array:
    """FedSPS: ``min((loss − floor) / (c · sq_norm), lr)`` with sq_norm = |g|², for numbers or arrays of them.

    0 where the loss is below ``floor``, and where either is not finite: there is no step to believe in.
    """
    gap = loss - floor
    short = gap < lr * c * sq_norm  # compared before dividing: sq_norm may be 0
    rate = where(short, gap / where(short & (sq_norm > 0), c * sq_norm, 1.0), lr)
    return where(isfinite(loss + sq_norm) & (gap > 0), rate, 0.0)


class HyperSGD(Remembering):
    """FedHyper-CL: SGD whose rate grows while gradients agree with the one before and with the last global step.

        β_k = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K),    w ← w − β_k g_k

    lr            the rate the server sent: step 0 uses exactly this one (moved into the bounds if outside)
    delta         Δ_t-1, the last global step (before − after): a flat tensor in the order of the parameters, a
                  sequence like the parameters, or None
    initial_lr    what the relative bound is around, if the server has moved ``lr`` since; default ``lr``
    momentum, weight_decay   as in torch.optim.SGD. With weight decay g stands for g + λw, the gradient of the
                  penalised loss; momentum does not enter the hypergradient
    per_group     one rate for each parameter group, each from its own inner products; else one for the whole model
    the others    as ``fedhyper.FedHyperCL``, which checks them

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
        lr = _sent(lr)
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
            group["lr"] = _sent(group["lr"])
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
        lr = None if lr is None else _sent(lr)
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


class DeltaSGD(Remembering):
    """Δ-SGD (Kim et al., ICLR 2024): the rate from the local smoothness that consecutive gradients show; no tuning.

        η_k = min(γ |x_k − x_k-1| / (2 |g_k − g_k-1|), √(1 + δ θ_k-1) η_k-1),    θ_k = η_k / η_k-1

    gamma   γ > 0, how far to trust the smoothness        delta   δ ≥ 0, how fast the rate may grow
    eta0    the rate of the first step

    This is the paper's pseudocode: g_k and g_k-1 are the gradients as they come, each from its own batch. The
    authors' code runs a second backward at x_k-1 on the newest batch, at twice the cost.
    """

    def __init__(self, params: Params, *, gamma: float = 2.0, delta: float = 0.1, eta0: float = 0.2) -> None:
        check_positive("gamma", gamma)
        check_positive("eta0", eta0)
        _check_not_negative("delta", delta)
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


class PolyakSGD(Remembering):
    """FedSPS (Mukherjee et al., 2023): the stochastic Polyak step, ``η = min((F − F*) / (c |g|²), lr)``.

    lr      the longest rate allowed; ``param_groups[i]["lr"]`` is the one used last, "max_lr" this one
    c       > 0, divides the step          floor   F*, a lower bound of the batch loss: 0 for cross-entropy

    The loss comes with ``step(closure)`` or ``step(loss=loss.item())``.
    """

    def __init__(self, params: Params, lr: float = 1.0, *, c: float = 0.5, floor: float = 0.0) -> None:
        lr = _sent(lr)
        check_positive("c", c)
        if not (is_number(floor) and math.isfinite(floor)):
            raise ValueError(f"floor must be a finite number below every loss, got {floor!r}; 0 suits cross-entropy")
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


def _norm(pieces: Pieces) -> float:
    return math.sqrt(inner(pieces, pieces))


def _check_not_negative(name: str, value: object) -> None:
    if not (is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"{name} must be a finite number, at least 0, got {value!r}")


def _sent(lr: Any) -> float:
    """A rate that may come from a server: checked again here."""
    try:
        rate = float(lr)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"lr must be a finite number above 0, got {lr!r}; train this round with the last good rate")
    return rate


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
