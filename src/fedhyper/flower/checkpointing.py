"""A strategy's whole state as one checkpoint file, and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedhyper.errors import CheckpointRefused
from fedhyper.flower.layout import Arrays, Vector, pack, views
from fedhyper.plan import PlanState
from fedhyper.storage import checkpoint
from fedhyper.storage.checkpoint import from_plain, to_plain

KIND = "flower"


class Saved(NamedTuple):
    """Everything that changes from round to round."""

    server_round: int
    arrays: ArrayRecord  # to send next
    good: ArrayRecord  # where a rollback returns to
    means: Arrays | None  # what is evaluated and returned; None: ``arrays``
    plan: PlanState
    step: Vector | None
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
        "plan": to_plain(saved.plan, tensors, "plan"),
        "means": to_plain(saved.means, tensors, "means"),
        "step": to_plain(saved.step, tensors, "step"),
        "memory": to_plain(saved.memory, tensors, "memory"),
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
        plan = from_plain(values["plan"], tensors, like)
        if not all(math.isfinite(rate) and rate > 0 for rate in (plan.global_lr, plan.local_lr)):
            raise ValueError("a rate that is not a finite number above 0")
        order = values["order"]
        return Saved(
            server_round=int(values["round"]),
            arrays=ArrayRecord({name: pack(tensors[f"arrays/{name}"]) for name in order}),
            good=ArrayRecord({name: pack(tensors[f"good/{name}"]) for name in order}),
            plan=plan,
            means=from_plain(values["means"], tensors),
            step=from_plain(values["step"], tensors),
            memory=from_plain(values["memory"], tensors),
            losses=list(values["losses"]),
            idle=int(values["idle"]),
            history=list(values["history"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointRefused(f"{path}: the checkpoint's content is not a strategy's state: {error}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
