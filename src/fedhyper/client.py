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
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedhyper.arrays import Array, elementwise, is_number, isfinite, where
from fedhyper.guard import check_positive, clamp
from fedhyper.schedulers import FedHyperCL, LRState
from fedhyper.vectors import cosine, inner

Params = Iterable[Any]  # what torch.optim takes: tensors, or dicts with "params"
Pieces = Sequence[Tensor]
_RULE = tuple(field.name for field in fields(FedHyperCL) if field.name != "lr")


def hyper_rate(
    rule: FedHyperCL, lr: float, grad: Pieces, before: Pieces | None = None, delta: Pieces | None = None
) -> tuple[float, float]:
    """FedHyper-CL on vectors in pieces, with the fast inner product: the rate to step with, and the hypergradient.

    ``before`` is None at step 0, ``delta`` in the first round. A hypergradient that is not finite was ignored.
    """
    if before is None:
        return lr, 0.0 * inner(grad, grad)  # 0, or NaN: not a gradient to remember
    compare = inner if rule.hypergrad == "inner" else cosine
    along = compare(grad, before)
    globally = compare(grad, delta) if delta is not None and rule.global_term != "off" else 0.0
    # Vectors of length 1 with these very inner products: the rule itself does the rest.
    state = replace(rule, hypergrad="inner").update(LRState(lr, [along]), [1.0], [globally])
    return float(state.lr), float(state.hypergrad)


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


class _Remembering(Optimizer):
    """What the three share: gradients that can be used, and the previous one kept without a copy where possible."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        self._last: dict[Tensor, tuple[Tensor, int]] = {}  # each parameter's .grad in the last step, and its version
        self._always_copy = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As ``torch.optim.Optimizer``, but one rate serves the whole model; complex parameters are refused."""
        group = dict(param_group)
        live = self.param_groups[0] if self.param_groups else self.defaults
        for name in self._shared():
            if group.setdefault(name, live[name]) != live[name]:
                raise ValueError(
                    f"a parameter group has {name}={group[name]!r}, but the whole model shares {live[name]!r}; "
                    "only HyperSGD(per_group=True) has a rate for each group"
                )
        super().add_param_group(group)
        for p in self.param_groups[-1]["params"]:
            if p.is_complex():
                raise ValueError(f"{type(self).__name__} trains real parameters, got {p.dtype}; use view_as_real")

    def _shared(self) -> Iterable[str]:
        """The settings that may not differ between groups."""
        return self.defaults

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _gradients(self) -> dict[Tensor, Tensor]:
        gradients = {p: p.grad for p in self._parameters() if p.grad is not None}
        if any(g.layout != torch.strided for g in gradients.values()):
            raise ValueError(f"{type(self).__name__} needs dense gradients; build the embedding with sparse=False")
        return gradients

    def _befores(self) -> dict[Tensor, Tensor]:
        """The directions of the step before; empty when there was none, or someone wrote over them."""
        befores = {p: s["before"] for p, s in self.state.items() if "before" in s}
        for p, (gradient, version) in self._last.items():
            if befores.get(p) is gradient and gradient._version != version:
                self._always_copy = True
                return {}
        return befores

    def _remember(self, gradients: dict[Tensor, Tensor], directions: dict[Tensor, Tensor]) -> None:
        """Keep ``directions`` for the next step.

        The tensor itself where the training loop makes new gradients every step (``zero_grad()``'s default, or
        ``FlatModel.swap``), which costs nothing; a copy where it writes into the same ones. The first step cannot know.
        """
        reused = any(gradient is self._last.get(p, (gradient, 0))[0] for p, gradient in gradients.items())
        for p in self._parameters():
            direction = directions.get(p)
            if direction is None:
                self.state.get(p, {}).pop("before", None)  # no gradient is a gradient of zero
                continue
            lent = direction is gradients.get(p)
            self.state[p]["before"] = direction.clone() if lent and (reused or self._always_copy) else direction
        self._last = {p: (gradient, gradient._version) for p, gradient in gradients.items()}


class HyperSGD(_Remembering):
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
        for p, piece in pieces.items():
            self.state[p]["delta"] = piece

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; every rate is settled before any parameter moves."""
        loss = _evaluate(closure)
        gradients = self._gradients()
        if not gradients:
            return loss
        directions = self._decayed(gradients)
        befores = self._befores()
        kept = dict(directions)
        for groups in [[group] for group in self.param_groups] if self._per_group else [self.param_groups]:
            members = [p for group in groups for p in group["params"]]
            here = any(p in directions for p in members)
            if not (here and math.isfinite(self._adapt(groups, members, directions, befores))):
                for p in members:  # nothing to learn from: the memory stays as it was
                    kept.pop(p, None)
                    kept.update({p: befores[p]} if p in befores else {})
        self._remember(gradients, kept)
        for group in self.param_groups:
            self._move(group, {p: directions[p] for p in group["params"] if p in directions})
        return loss

    @property
    def _per_group(self) -> bool:
        return bool(self.param_groups[0]["per_group"])

    def _decayed(self, gradients: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """g, or g + λw in a new tensor."""
        directions = dict(gradients)
        for group in self.param_groups:
            mine = [p for p in group["params"] if p in gradients]
            if group["weight_decay"] and mine:
                decayed = torch._foreach_add([gradients[p] for p in mine], mine, alpha=group["weight_decay"])
                directions.update(zip(mine, decayed, strict=True))
        return directions

    def _adapt(
        self,
        groups: list[dict[str, Any]],
        members: list[Tensor],
        directions: dict[Tensor, Tensor],
        befores: dict[Tensor, Tensor],
    ) -> float:
        """Set the rate that ``groups`` share; the hypergradient comes back."""
        deltas = {p: self.state[p]["delta"] for p in members if "delta" in self.state.get(p, {})}
        started = any(p in befores for p in members)
        involved = [p for p in members if p in directions or p in befores or p in deltas]
        lr, h = hyper_rate(
            _rule(groups[0]),
            _inside(groups[0]),
            _vector(directions, involved),
            _vector(befores, involved) if started else None,
            _vector(deltas, involved) if started and deltas else None,
        )
        for group in groups:
            group["lr"], group["last_hypergrad"] = lr, h
        return h

    def _move(self, group: dict[str, Any], directions: dict[Tensor, Tensor]) -> None:
        params, steps = list(directions), list(directions.values())
        if not params:
            return
        if group["momentum"]:
            old = [p for p in params if "momentum_buffer" in self.state[p]]
            if old:
                buffers = [self.state[p]["momentum_buffer"] for p in old]
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_add_(buffers, [directions[p] for p in old])
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = directions[p].clone()
            steps = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_add_(params, steps, alpha=-group["lr"])


class DeltaSGD(_Remembering):
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
        loss = _evaluate(closure)
        gradients, befores, group = self._gradients(), self._befores(), self.param_groups[0]
        if not gradients:
            return loss
        lr, theta = group["lr"], group["theta"]
        turned = 0.0
        if befores:
            involved = [p for p in self._parameters() if p in gradients or p in befores]
            new, old = _vector(gradients, involved), _vector(befores, involved)
            moved, turned = lr * _norm(old), _norm(torch._foreach_sub(new, old))
            lr, theta = delta_sgd_rate(lr, theta, moved, turned, gamma=group["gamma"], delta=group["delta"])
        for group in self.param_groups:
            group["lr"], group["theta"] = lr, theta
        if math.isfinite(turned):
            self._remember(gradients, gradients)
        torch._foreach_add_(list(gradients), list(gradients.values()), alpha=-lr)
        return loss


class PolyakSGD(_Remembering):
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
        loss = _evaluate(closure) if closure is not None else loss
        if loss is None:
            raise ValueError("PolyakSGD needs the loss; call step(closure), or step(loss=loss.item())")
        gradients, group = self._gradients(), self.param_groups[0]
        if not gradients:
            return loss
        steps = list(gradients.values())
        lr = polyak_rate(float(loss), inner(steps, steps), lr=group["max_lr"], c=group["c"], floor=group["floor"])
        for group in self.param_groups:
            group["lr"] = lr
        torch._foreach_add_(list(gradients), steps, alpha=-lr)
        return loss


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _vector(pieces: dict[Tensor, Tensor], parameters: list[Tensor]) -> list[Tensor]:
    return [pieces[p] if p in pieces else torch.zeros_like(p) for p in parameters]


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


def _rule(group: dict[str, Any]) -> FedHyperCL:
    return FedHyperCL(lr=group["initial_lr"], **{name: group[name] for name in _RULE})


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
