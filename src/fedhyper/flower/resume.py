"""A strategy's whole state as one checkpoint file, and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedhyper import checkpoint
from fedhyper.errors import CheckpointRefused
from fedhyper.flower.records import Arrays, Vector, pack, views
from fedhyper.plans import PlanState

KIND = "flower"


class Saved(NamedTuple):
    """Everything that changes from round to round."""

    server_round: int
    arrays: ArrayRecord  # to send next
    good: ArrayRecord  # where a rollback returns to
    means: Arrays | None  # what is evaluated and returned; None: ``arrays``
    plan: PlanState
    delta: Vector | None
    memory: dict[str, Any]  # the inner strategy's momentum and moments
    losses: list[Any]
    idle: int
    history: list[dict[str, Any]]


def save(path: Path, saved: Saved, identity: dict[str, Any]) -> None:
    """Replace ``path`` by this state. ``identity`` is what a run must agree on to go on from it."""
    tensors: dict[str, NDArray[Any]] = {}
    values = {
        "kind": KIND,
        "identity": identity,
        "round": saved.server_round,
        "order": list(saved.arrays),
        "plan": _to_plain(saved.plan, tensors, "plan"),
        "means": _to_plain(saved.means, tensors, "means"),
        "delta": _to_plain(saved.delta, tensors, "delta"),
        "memory": _to_plain(saved.memory, tensors, "memory"),
        "losses": saved.losses,
        "idle": saved.idle,
        "history": saved.history,
    }
    for group, record in (("arrays", saved.arrays), ("good", saved.good)):
        tensors.update({f"{group}/{name}": array for name, array in views(record).items()})
    checkpoint.save(path, tensors, values)


def load(path: Path, identity: dict[str, Any], *, like: PlanState) -> Saved:
    """The state in ``path``, or CheckpointRefused with the first setting in which this run is another one."""
    tensors, values = checkpoint.load(path)
    if values.get("kind") != KIND:
        raise CheckpointRefused(f"{path}: not the checkpoint of a Flower run")
    theirs = values.get("identity", {})
    for key, value in identity.items():
        if theirs.get(key) != value:
            raise CheckpointRefused(f"{path}: {key} was {_short(theirs.get(key))} and now is {_short(value)}")
    try:
        plan = _from_plain(values["plan"], tensors, like)
        if not all(math.isfinite(rate) and rate > 0 for rate in (plan.global_lr, plan.local_lr)):
            raise ValueError("a rate that is not a finite number above 0")
        order = values["order"]
        return Saved(
            server_round=int(values["round"]),
            arrays=ArrayRecord({name: pack(tensors[f"arrays/{name}"]) for name in order}),
            good=ArrayRecord({name: pack(tensors[f"good/{name}"]) for name in order}),
            plan=plan,
            means=_from_plain(values["means"], tensors, None),
            delta=_from_plain(values["delta"], tensors, None),
            memory=_from_plain(values["memory"], tensors, None),
            losses=list(values["losses"]),
            idle=int(values["idle"]),
            history=list(values["history"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointRefused(f"{path}: the checkpoint's content is not a strategy's state: {error}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _to_plain(value: Any, tensors: dict[str, NDArray[Any]], path: str) -> Any:
    """``value`` as JSON, its arrays moved to ``tensors``; one that occurs twice is kept once."""
    if isinstance(value, np.ndarray):
        for name, seen in tensors.items():
            if seen is value:
                return {"tensor": name}
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):
        return {"items": {key: _to_plain(item, tensors, f"{path}/{key}") for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]
    return float(value) if isinstance(value, np.floating) else value


def _from_plain(value: Any, tensors: dict[str, NDArray[Any]], like: Any) -> Any:
    """The inverse; ``like`` gives the types of tuples, lists without one stay lists."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _from_plain(item, tensors, None) for key, item in value["items"].items()}
    if isinstance(value, list):
        if not isinstance(like, tuple):
            return [_from_plain(item, tensors, None) for item in value]
        items = [_from_plain(item, tensors, model) for item, model in zip(value, like, strict=True)]
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    return value
