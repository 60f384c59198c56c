"""What a run must remember from one round to the next, and how it becomes plain data and comes back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from fedhyper.plans import PlanState
from fedhyper.server import Moments


class ServerState(NamedTuple):
    """Everything that changes. A round makes a new one; nothing is changed in place."""

    round: int  # rounds done
    weights: Tensor  # w_t: trainable parameters, flat, in the standard layout
    buffers: Tensor  # BatchNorm statistics: averaged, never stepped
    counters: Tensor  # integer buffers: the largest of the clients'
    plan: PlanState
    moments: Moments
    delta: Tensor | float  # Δ_t-1, the last aggregate; 0 before there is one
    mean: Tensor  # what is evaluated and saved: w_t, or a mean of the last few
    mean_buffers: Tensor  # and its statistics
    good: Tensor  # the weights a rollback returns to
    good_buffers: Tensor  # and their statistics
    carried_lr: float  # mean of the clients' final rates (CL with carry); NaN: not in use
    idle_rounds: int  # consecutive rounds without a usable update


def to_plain(value: Any, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """``value`` as JSON, its tensors moved to ``tensors``; one that occurs twice is kept once."""
    if isinstance(value, Tensor):
        for name, known in tensors.items():
            if known is value:
                return {"tensor": name}
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, tuple):
        return [to_plain(item, tensors, f"{path}.{i}") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def from_plain(value: Any, tensors: dict[str, Tensor], like: Any) -> Any:
    """The inverse of ``to_plain``; ``like`` is a state of the same method, from which the tuple types are taken."""
    if isinstance(value, dict):
        return tensors[value["tensor"]] if "tensor" in value else float(value["float"])
    if isinstance(value, list):
        items = [from_plain(item, tensors, model) for item, model in zip(value, like, strict=True)]
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    return value
