"""The schedules by name and from rule objects."""

from __future__ import annotations

from typing import Any

from flwr.serverapp.strategy import Strategy

from fedhyper.automatic.auto import auto
from fedhyper.baselines import Constant
from fedhyper.errors import UserError
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


def check_settings(send_delta: str, norm_cap: float, checkpoint_every: int) -> None:
    """UserError for a setting of the strategy that cannot be."""
    if send_delta not in ("full", "half", "cached"):
        raise UserError(f"send_delta must be one of full, half, cached, got {send_delta!r}")
    if not 0 <= norm_cap <= 1e6:
        raise UserError(f"norm_cap is a number of medians from 0 (off) to 1e6, got {norm_cap!r}")
    if checkpoint_every < 1:
        raise UserError(f"checkpoint_every is a number of rounds and must be at least 1, got {checkpoint_every!r}")


def described(schedule: Schedule, inner: Strategy, settings: dict[str, Any]) -> dict[str, Any]:
    """What a run's ``config.toml`` says of them; ``method`` is the simulator's name for it, where it has one."""
    name = type(inner).__name__
    if isinstance(schedule, str):
        method = {"auto": "fedhyper", "constant": name.lower()}.get(schedule, f"fedhyper-{schedule}")
    else:
        rules = schedule if isinstance(schedule, tuple) else (schedule,)
        method = "+".join(type(rule).__name__ for rule in rules)
    known = {key: value for key, value in settings.items() if value is not None}
    return {"method": method, "engine": "flower", "strategy": name, "schedule": str(schedule), **known}
