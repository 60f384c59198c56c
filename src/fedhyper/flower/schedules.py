"""The schedules by name and from rule objects, and what clients are told of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedhyper.automatic.auto import auto
from fedhyper.automatic.ladder import Ladder
from fedhyper.baselines import Constant
from fedhyper.errors import UserError
from fedhyper.flower.layout import Arrays, pack
from fedhyper.flower.wire import CLIENT, DELTA, LOCAL_LR
from fedhyper.loop import LoopState
from fedhyper.plan import Pair, Plan
from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL

Rules = FedHyperG | FedHyperCL | Plan | tuple[Any, ...]
Schedule = str | Rules

_PLAN = (
    "requires",
    "compares",
    "products_only",
    "graft",
    "ladder",
    "optimizer",
    "average",
    "init",
    "update",
    "nonsense",
)
NAMES = ("auto", "g", "sl", "cl", "g+sl", "g+cl", "constant")


def make_schedule(schedule: Schedule, *, local_lr: float, global_lr: float) -> tuple[Plan, FedHyperCL | None]:
    """What the server decides each round, and the rule clients run each step (None: plain SGD).

    A rule object brings its own initial rate; ``local_lr`` and ``global_lr`` start the rates that no object sets.
    """
    if isinstance(schedule, str):
        schedule = _by_name(schedule, local_lr, global_lr)
    if isinstance(schedule, (FedHyperG, FedHyperCL)):
        schedule = (schedule,)
    if not isinstance(schedule, tuple):
        if lacks := [name for name in _PLAN if not hasattr(schedule, name)]:
            got = f"{schedule!r}, which has no {lacks[0]}"
            raise UserError(f"schedule must be one of {', '.join(NAMES)}, rules, or a plan, got {got}")
        return schedule, None
    glob: Any = Constant(lr=global_lr)
    local: Any = Constant(lr=local_lr)
    client = None
    for rule in schedule:
        if isinstance(rule, FedHyperCL):
            client, local = rule, Constant(lr=rule.lr)
        elif isinstance(rule, FedHyperSL):  # before G, which it inherits from
            local = rule
        elif isinstance(rule, FedHyperG):
            glob = rule
        else:
            raise UserError(f"schedule takes FedHyperG, FedHyperSL and FedHyperCL, got {rule!r}; use Pair for others")
    return Pair(global_rule=glob, local_rule=local), client


def _by_name(name: str, local_lr: float, global_lr: float) -> Rules:
    if name == "auto":
        return auto(local_lr=local_lr, global_lr=global_lr)
    rules = {
        "g": FedHyperG(lr=global_lr),
        "sl": FedHyperSL(lr=local_lr),
        "cl": FedHyperCL(lr=local_lr, local_steps=1),  # each client puts its own number of steps
    }
    if name not in NAMES:
        raise UserError(f"schedule must be one of {', '.join(NAMES)}, got {name!r}")
    return tuple(rules[part] for part in name.split("+") if part != "constant")


def described(schedule: Schedule, inner: Strategy) -> dict[str, Any]:
    """What a run's ``config.toml`` says of them; ``method`` is the simulator's name for it, where it has one."""
    name = type(inner).__name__
    if isinstance(schedule, str):
        method = {"auto": "fedhyper", "constant": name.lower()}.get(schedule, f"fedhyper-{schedule}")
    else:
        rules = schedule if isinstance(schedule, tuple) else (schedule,)
        method = "+".join(type(rule).__name__ for rule in rules)
    return {"method": method, "engine": "flower", "strategy": name, "schedule": str(schedule)}


def spread_rates(ladder: Ladder, messages: list[Message], server_round: int, keys: Sequence[str]) -> dict[int, int]:
    """Give every node a rate of its own to try out; node → rung comes back. ``keys`` are the config's for the rate."""
    rungs = ladder.spread(len(messages), server_round) if messages else []
    for message, rung in zip(messages, rungs, strict=True):  # FedAvg puts one content into all its messages
        records = dict(message.content.items())
        for name, record in records.items():
            if isinstance(record, ConfigRecord) and LOCAL_LR in record:
                records[name] = record = record.copy()
                record.update(dict.fromkeys(keys, ladder.rate(rung)))
        message.content = RecordDict(records)
    return {message.metadata.dst_node_id: rung for message, rung in zip(messages, rungs, strict=True)}


def attach_rule(
    rule: FedHyperCL, messages: list[Message], state: LoopState, send_delta: Literal["full", "half", "cached"]
) -> None:
    """FedHyper-CL's settings, and the last aggregate unless clients keep the weights themselves."""
    settings = {key: value for key, value in asdict(rule).items() if key != "local_steps"}
    extra: dict[str, Any] = {CLIENT: ConfigRecord({**settings, "global_lr": float(state.plan.global_lr)})}
    if rule.global_term != "off" and isinstance(state.before, dict) and send_delta != "cached":
        named: Arrays = state.before
        if send_delta == "half":
            largest = float(np.finfo(np.float16).max)
            named = {name: np.clip(array, -largest, largest).astype(np.float16) for name, array in named.items()}
        extra[DELTA] = ArrayRecord({name: pack(array) for name, array in named.items()})
    for message in messages:  # FedAvg puts one content into all its messages
        message.content = RecordDict({**dict(message.content.items()), **extra})
