"""What experiments are made of: levels of what they vary, blocks of runs, and the experiment itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedhyper.lab.paper.variants import SCALES, Scale

ALL = ("mnist", "fmnist", "cifar10", "shakespeare")


@dataclass(frozen=True)
class Level:
    """A setting that an experiment varies besides the method: a name for tables, and what it sets."""

    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


ONE: tuple[Level, ...] = (Level(),)
SKEWS = (
    Level("IID", {"partition.kind": "iid"}),
    *(Level(f"Dirichlet {c:g}", {"partition.concentration": c}) for c in (0.75, 0.5, 0.25)),
)


def rate_grid(task: str, scale: Scale) -> tuple[Level, ...]:
    """The 5 × 5 initial rates of the paper; at the scale smoke every second one."""
    every = 2 if scale == "smoke" else 1
    rows, columns = [0.5, 0.75, 1.0, 1.5, 2.0][::every], [0.001, 0.005, 0.01, 0.05, 0.1][::every]
    return tuple(rates(a, b) for a in rows for b in columns)


def rates(global_lr: float, local_lr: float) -> Level:
    """A pair of initial rates."""
    return Level(f"α {global_lr:g}, β {local_lr:g}", {"global_lr": global_lr, "local_lr": local_lr})


def middle_row(task: str, scale: Scale) -> tuple[Level, ...]:
    """Of the grid the pairs with a global rate of 1, where the paper's bound on it has one reading only."""
    return tuple(level for level in rate_grid(task, scale) if level.settings["global_lr"] == 1.0)


def own_rates(task: str, scale: Scale) -> tuple[Level, ...]:
    """Local rates of which every method may choose its own; at the scale smoke every second one."""
    every = 2 if scale == "smoke" else 1
    return tuple(Level(f"β {rate:g}", {"local_lr": rate}) for rate in (0.003, 0.01, 0.03, 0.1)[::every])


def one_level(task: str, scale: Scale) -> tuple[Level, ...]:
    """Nothing but the methods is varied."""
    return ONE


def skews(task: str, scale: Scale) -> tuple[Level, ...]:
    """From evenly mixed to strongly skewed clients."""
    return SKEWS


@dataclass(frozen=True)
class Block:
    """Every variant on every task at every level, on at most ``seeds`` seeds; ablations not at the scale paper."""

    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    levels: Callable[[str, Scale], Sequence[Level]] = one_level
    seeds: int = 3
    ablation: bool = False


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper, or a question of ours (``own``, with ``about`` to explain it).

    ``figures`` are keys of ``lab.figures``; ``timed``: one cell at a time; ``scales``: where it can be run.
    """

    title: str
    blocks: tuple[Block, ...]
    figures: tuple[str, ...] = ("accuracy-by-round",)
    changes: dict[Scale, dict[str, Any]] = field(default_factory=dict)
    timed: bool = False
    notes: tuple[str, ...] = ()
    scales: tuple[Scale, ...] = SCALES
    own: bool = False
    about: str = ""
