"""What the paper's figures and tables are made of: which methods, on which data, and what else they vary.

Everything here is a table; the methods and their settings are in ``variants``, and ``planning.planned_runs`` turns the
rows into cells of a sweep.
"""

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
    """The 5 × 5 initial rates of the paper; at the small scale shakespeare's local ones are ten times as large."""
    factor = 10 if (task, scale) == ("shakespeare", "small") else 1
    every = 2 if scale == "smoke" else 1
    rows, columns = [0.5, 0.75, 1.0, 1.5, 2.0][::every], [0.001, 0.005, 0.01, 0.05, 0.1][::every]
    return tuple(rates(a, round(factor * b, 9)) for a in rows for b in columns)


def rates(global_lr: float, local_lr: float) -> Level:
    """A pair of initial rates."""
    return Level(f"α {global_lr:g}, β {local_lr:g}", {"global_lr": global_lr, "local_lr": local_lr})


def middle_row(task: str, scale: Scale) -> tuple[Level, ...]:
    """Of the grid the pairs with a global rate of 1, where the paper's bound on it has one reading only."""
    return tuple(level for level in rate_grid(task, scale) if level.settings["global_lr"] == 1.0)


def _one(task: str, scale: Scale) -> tuple[Level, ...]:
    return ONE


def _skews(task: str, scale: Scale) -> tuple[Level, ...]:
    return SKEWS


@dataclass(frozen=True)
class Block:
    """Every variant on every task at every level, with the scale's seeds for the task, at most ``seeds``."""

    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    levels: Callable[[str, Scale], Sequence[Level]] = _one
    seeds: int = 3
    ablation: bool = False


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper. ``figures`` are keys of ``lab.figures``; ``timed``: one cell at a time."""

    title: str
    blocks: tuple[Block, ...]
    figures: tuple[str, ...] = ("accuracy-by-round",)
    changes: dict[Scale, dict[str, Any]] = field(default_factory=dict)
    timed: bool = False
    notes: tuple[str, ...] = ()


_SAME_LETTER = "With α0 = 1 the two readings of G's bound, [1/γ, γ] and [α0/γ, α0·γ], are one: there is one G."
_TWO_TERMS = "CL's global term is Eq. 20's, added; `sign` is Algorithm 1's, multiplied."

EXPERIMENTS: dict[str, Experiment] = {
    "fig-g": Experiment(
        "FedHyper-G against server optimizers",
        (
            Block(ALL, ("fedavg", "fedadagrad", "fedadam", "fedexp", "decay-g", "g")),
            Block(("fmnist",), ("g-cosine", "g-bound-1.5", "g-bound-10"), seeds=1, ablation=True),
        ),
        notes=(_SAME_LETTER,),
    ),
    "fig-sl": Experiment(
        "FedHyper-SL against FedAvg and a decaying local rate",
        (
            Block(ALL, ("fedavg", "decay-sl", "g", "sl", "sl-letter")),
            Block(("fmnist",), ("sl-cosine", "sl-bound-3"), seeds=1, ablation=True),
        ),
    ),
    "fig-cl": Experiment(
        "FedHyper-CL against FedAvg with SGD and with Adam",
        (
            Block(ALL, ("fedavg", "local-adam", "cl", "cl-letter", "cl-released")),
            Block(("shakespeare",), ("g", "sl")),
            Block(("fmnist",), ("cl-off", "cl-sign", "cl-cosine", "cl-bound-3", "cl-bound-30"), seeds=1, ablation=True),
        ),
        notes=(_TWO_TERMS, "The released code also gives its clients momentum 0.5; here every method has none."),
    ),
    "fig-robust": Experiment(
        "Robustness to the initial rates: FedAvg and FedHyper-G+CL on a grid",
        (
            Block(("cifar10", "shakespeare"), ("fedavg", "g+cl"), rate_grid, seeds=1),
            Block(("cifar10", "shakespeare"), ("g+cl-letter",), middle_row, seeds=1, ablation=True),
        ),
        figures=("accuracy-map-1", "gain-map-1"),
        changes={"small": {"rounds": 20, "subset": 8_000, "eval_every": 10}, "smoke": {"rounds": 4}},
    ),
    "fig-compose": Experiment(
        "FedHyper-G with server momentum and with FedAdam",
        (Block(("cifar10",), ("fedavg", "momentum", "g+momentum", "fedadam", "g+adam"), seeds=1),),
    ),
    "fig-curve": Experiment(
        "The global rate over rounds: FedHyper-G and FedExP",
        (
            Block(("cifar10", "fmnist"), ("g", "fedexp"), seeds=1),
            Block(("cifar10",), ("g-cosine", "g-bound-1.5", "g-bound-10"), seeds=1, ablation=True),
        ),
        figures=("global-lr-by-round",),
        notes=("The paper does not say on which data its curve was taken; its 100 rounds fit CIFAR-10 best.",),
    ),
    "tab-noniid": Experiment(
        "From IID to Dirichlet 0.25: FedAvg and FedHyper-G+CL",
        (
            Block(("mnist", "fmnist", "cifar10"), ("fedavg", "g+cl"), _skews),
            Block(("mnist",), ("g+cl-letter",), _skews, seeds=1, ablation=True),
        ),
        figures=(),
        notes=("The paper's table says FedHyper without saying which; G+CL is what it recommends.",),
    ),
    "fig-combine": Experiment(
        "FedHyper-G, FedHyper-CL, and both",
        (Block(("cifar10", "shakespeare"), ("fedavg", "g", "cl", "g+cl", "g+cl-letter"), seeds=1),),
    ),
    "overhead": Experiment(
        "What each scheduler adds to a round",
        (Block(("fmnist", "shakespeare"), ("fedavg", "g", "sl", "cl", "cl-off", "g+cl", "cl-released"), seeds=3),),
        figures=(),
        changes={scale: {"rounds": 12, "eval_every": 12} for scale in SCALES},
        timed=True,
        notes=("One run at a time; the median of all rounds after the first of each run.",),
    ),
}
