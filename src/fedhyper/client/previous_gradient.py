"""What the client optimizers share: gradients that can be used, and the previous one kept without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Params = Iterable[Any]  # what torch.optim takes: tensors, or dicts with "params"

_LARGE = 65_536  # numbers; from here on a copy costs more than a call


@dataclass(frozen=True, slots=True)
class Pack:
    """Parameters whose gradients are compared as one vector: small ones together, as calls cost more than copies."""

    owner: Tensor  # the first of them; its state has "before", the vector of the last step
    places: list[int]  # where they stand among the parameters that share a rate
    delta: Tensor | None


class Remembering(Optimizer):
    """What the three share: gradients that can be used, and the previous one kept without a copy where possible."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        self._packs: dict[Tensor, list[Pack]] = {}  # by the first parameter of those that share a rate
        self._kept: dict[Tensor, tuple[Tensor, int]] = {}  # by owner: its .grad in the last step, and version

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
        for state in self.state.values():
            state.pop("before", None)  # the vector has grown: the rate rests for a step
        self._forget()

    def _shared(self) -> Iterable[str]:
        """The settings that may not differ between groups."""
        return self.defaults

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def gradients(self) -> list[list[Tensor | None]]:
        """By group; empty when no parameter has one."""
        gradients = [[p.grad for p in group["params"]] for group in self.param_groups]
        present = [g for grads in gradients for g in grads if g is not None]
        if any(g.layout != torch.strided for g in present):
            raise ValueError(f"{type(self).__name__} needs dense gradients; build the embedding with sparse=False")
        return gradients if present else []

    def packs(self, parameters: list[Tensor]) -> list[Pack]:
        """How the vector of these parameters, which share a rate, is held; worked out once."""
        if parameters[0] not in self._packs:
            together: dict[Any, list[int]] = {}
            for i, p in enumerate(parameters):
                together.setdefault((p.device, p.dtype) if p.numel() < _LARGE else i, []).append(i)
            self._packs[parameters[0]] = [
                Pack(parameters[places[0]], places, self._packed_delta([parameters[i] for i in places]))
                for places in together.values()
            ]
        return self._packs[parameters[0]]

    def _packed_delta(self, parameters: list[Tensor]) -> Tensor | None:
        deltas = [self.state[p].get("delta") for p in parameters]
        if all(delta is None for delta in deltas):
            return None
        return _joined([torch.zeros_like(p) if d is None else d for p, d in zip(parameters, deltas, strict=True)])

    def recall(self, packs: list[Pack]) -> list[Tensor] | None:
        """The vector of the last step; None if there was none, or if someone has written into what was kept."""
        before = [self.state[pack.owner].get("before") for pack in packs]
        for pack, vector in zip(packs, before, strict=True):
            kept, version = self._kept.get(pack.owner, (None, 0))
            if vector is None or (kept is not None and vector is kept and kept._version != version):
                return None
        return before

    def remember(self, packs: list[Pack], vector: list[Tensor]) -> None:
        """Keep ``vector`` for the next step.

        The gradients themselves where the training loop makes new ones every step (``zero_grad()``'s default, or
        ``FlatModel.swap``), which costs nothing; a copy where it writes into the same ones. The first step cannot know.
        """
        for pack, piece in zip(packs, vector, strict=True):
            own = piece is not pack.owner.grad
            again = self._kept.get(pack.owner, (piece, 0))[0] is piece
            self.state[pack.owner]["before"] = piece.clone() if again and not own else piece
            if not own:
                self._kept[pack.owner] = (piece, piece._version)


def checked_rate(lr: Any) -> float:
    """A rate that may come from a server: checked again here."""
    try:
        rate = float(lr)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"lr must be a finite number above 0, got {lr!r}; train this round with the last good rate")
    return rate


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """The closure's loss, if there is one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def decayed(group: dict[str, Any], grads: list[Tensor | None]) -> list[Tensor | None]:
    """g + λw, in new tensors."""
    mine = [(i, g, group["params"][i]) for i, g in enumerate(grads) if g is not None]
    if group["weight_decay"] and mine:
        decayed = torch._foreach_add([g for _, g, _ in mine], [p for *_, p in mine], alpha=group["weight_decay"])
        grads = list(grads)
        for (i, *_), direction in zip(mine, decayed, strict=True):
            grads[i] = direction
    return grads


def descend(parameters: list[Tensor], grads: list[Tensor | None], lr: float) -> None:
    """w ← w − lr · g, where there is a g."""
    moving = [(p, g) for p, g in zip(parameters, grads, strict=True) if g is not None]
    torch._foreach_add_([p for p, _ in moving], [g for _, g in moving], alpha=-lr)


def packed(packs: list[Pack], pieces: list[Tensor | None], parameters: list[Tensor]) -> list[Tensor]:
    """What there is, packed; zeros for a parameter without gradient."""
    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, pieces, strict=True)]
    return [_joined([whole[i] for i in pack.places]) for pack in packs]


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat([piece.reshape(-1) for piece in pieces])
