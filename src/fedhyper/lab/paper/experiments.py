"""What the paper's figures and tables are made of: which methods, on which data, in which setting, at which scale.

    paper   the paper's setting                       small   real data, shrunk to an hour on two cores
    smoke   scikit-learn's digits, to see it work

Everything here is a table. ``planned_runs("fig-g", "small")`` turns the rows into cells of a sweep.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedhyper.lab.config.model import make_config, put
from fedhyper.lab.sweep.grid import Cell, cell_name

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
IMAGES, ALL = ("mnist", "fmnist"), ("mnist", "fmnist", "cifar10", "shakespeare")

# --- the methods -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A method as a row of a table names it, with what it sets beyond the setting they share."""

    label: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)


# The paper does not give its rates for FedAdam and FedAdagrad. Their directions have unit size, so a global rate of 1
# would throw the model away. Measured after 20 rounds of fmnist at the scale small, one seed, FedAvg 68.4 %:
# FedAdam 0.003, 0.01, 0.03: 68.6, 74.3, 70.5 %; FedAdagrad 0.01, 0.03, 0.1: 72.5, 71.8, 10.0 %.
_ADAM = {"global_lr": 0.01}
_LETTER = {"options.bounds": "absolute"}
_ROBUST = {"options.hypergrad": "cosine", "options.apply": "log", "options.hyper_lr": 0.2}

VARIANTS: dict[str, Variant] = {
    "fedavg": Variant("FedAvg", "fedavg"),
    "fedadagrad": Variant("FedAdagrad", "fedadagrad", _ADAM),
    "fedadam": Variant("FedAdam", "fedadam", _ADAM),
    "fedexp": Variant("FedExP", "fedexp"),
    "decay-g": Variant("Decay-G", "decay-g"),
    "decay-sl": Variant("Decay-SL", "decay-sl"),
    "local-adam": Variant("FedAvg + Adam", "local-adam", {"local_lr": 0.001}),
    "g": Variant("FedHyper-G", "fedhyper-g"),
    "g-cosine": Variant("FedHyper-G, cosine", "fedhyper-g", _ROBUST),
    "g-bound-1.5": Variant("FedHyper-G, γ = 1.5", "fedhyper-g", {"options.global_bound": 1.5}),
    "g-bound-10": Variant("FedHyper-G, γ = 10", "fedhyper-g", {"options.global_bound": 10.0}),
    "sl": Variant("FedHyper-SL", "fedhyper-sl"),
    "sl-letter": Variant("FedHyper-SL, [1/γ, γ]", "fedhyper-sl", _LETTER),
    "sl-cosine": Variant("FedHyper-SL, cosine", "fedhyper-sl", _ROBUST),
    "sl-bound-3": Variant("FedHyper-SL, γ = 3", "fedhyper-sl", {"options.local_bound": 3.0}),
    "cl": Variant("FedHyper-CL", "fedhyper-cl"),
    "cl-letter": Variant("FedHyper-CL, [1/γ, γ]", "fedhyper-cl", _LETTER),
    "cl-released": Variant("FedHyper-CL, released code", "fedhyper-cl-released"),
    "cl-off": Variant("FedHyper-CL, no global term", "fedhyper-cl", {"options.global_term": "off"}),
    "cl-sign": Variant("FedHyper-CL, sign term", "fedhyper-cl", {"options.global_term": "sign"}),
    "cl-cosine": Variant("FedHyper-CL, cosine", "fedhyper-cl", _ROBUST),
    "cl-bound-3": Variant("FedHyper-CL, γ = 3", "fedhyper-cl", {"options.local_bound": 3.0}),
    "cl-bound-30": Variant("FedHyper-CL, γ = 30", "fedhyper-cl", {"options.local_bound": 30.0}),
    "g+cl": Variant("FedHyper-G+CL", "fedhyper-g+cl"),
    "g+cl-letter": Variant("FedHyper-G+CL, [1/γ, γ]", "fedhyper-g+cl", _LETTER),
    "momentum": Variant("FedAvg + momentum", "fedavgm"),
    "g+momentum": Variant("FedHyper-G + momentum", "fedhyper-g+momentum"),
    "g+adam": Variant("FedHyper-G + FedAdam", "fedhyper-g+adam", _ADAM),
}

# --- the settings ----------------------------------------------------------------------------------------------

_PAPER: dict[str, Any] = {
    "clients": 100, "clients_per_round": 10, "local_epochs": 10, "batch_size": 64, "local_lr": 0.01, "global_lr": 1.0,
    "weighting": "uniform", "partition.kind": "dirichlet", "partition.concentration": 0.5,
}  # fmt: skip
_NATURAL = {"partition.kind": "natural", "model_options.bidirectional": True}
_SMALL = _PAPER | {"local_epochs": 2, "batch_size": 32, "eval_every": 5}
SETTINGS: dict[Scale, dict[str, dict[str, Any]]] = {
    "paper": {
        "mnist": _PAPER | {"rounds": 50, "eval_every": 1},
        "fmnist": _PAPER | {"rounds": 50, "eval_every": 1},
        "cifar10": _PAPER | {"rounds": 200, "eval_every": 2, "model": "resnet18"},
        "shakespeare": _PAPER | _NATURAL | {"rounds": 600, "eval_every": 5},
    },
    "small": {
        "mnist": _SMALL | {"rounds": 50, "subset": 10_000},
        "fmnist": _SMALL | {"rounds": 50, "subset": 10_000},
        "cifar10": _SMALL | {"rounds": 100, "subset": 20_000, "model": "cnn"},
        "shakespeare": _SMALL | _NATURAL | {
            "rounds": 100, "local_epochs": 1, "local_lr": 0.5,
            "model_options.hidden": 64, "model_options.layers": 1,
        },
    },
    "smoke": {
        "digits": _PAPER | {
            "rounds": 10, "eval_every": 1, "clients": 30, "local_epochs": 1, "batch_size": 10, "local_lr": 0.1,
        },
    },
}  # fmt: skip
SEEDS: dict[Scale, dict[str, int]] = {"paper": {}, "small": {"mnist": 3, "fmnist": 3}, "smoke": {"digits": 2}}


def tasks_of(tasks: Sequence[str], scale: Scale) -> tuple[str, ...]:
    """The data an experiment runs on at this scale: its own, or the digits that stand in for them."""
    return tuple(tasks) if scale != "smoke" else ("digits",)


# --- the experiments -------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Planned:
    """One run of an experiment and what it stands for."""

    cell: Cell
    task: str
    variant: str
    level: str
    seed: int
    ablation: bool


def planned_runs(name: str, scale: Scale) -> list[Planned]:
    """All runs of an experiment, in the order of its table; every config is checked here."""
    experiment = EXPERIMENTS[name]
    rows: dict[str, Planned] = {}
    for block in experiment.blocks:
        for task in tasks_of(block.tasks, scale):
            # Timings need repetitions at every scale, and repetitions are seeds.
            seeds = block.seeds if experiment.timed else min(block.seeds, SEEDS[scale].get(task, 1))
            for level in block.levels(task, scale):
                for variant in block.variants:
                    for seed in range(seeds):
                        row = _row(experiment, scale, block, task, variant, level, seed)
                        rows.setdefault(row.cell.name, row)
    # Timings: all methods in turn, then all again, so that what the machine does meanwhile hits them alike.
    return sorted(rows.values(), key=lambda row: row.seed) if experiment.timed else list(rows.values())


def _row(
    experiment: Experiment, scale: Scale, block: Block, task: str, variant: str, level: Level, seed: int
) -> Planned:
    chosen = VARIANTS[variant]
    flat = SETTINGS[scale][task] | experiment.changes.get(scale, {}) | chosen.settings | level.settings
    values: dict[str, Any] = {"task": task, "method": chosen.method, "seed": seed}
    for key, value in flat.items():
        put(values, key, copy.copy(value))
    name = cell_name([("task", task), ("variant", variant), *level.settings.items(), ("seed", seed)])
    return Planned(Cell(name, make_config(values, name)), task, variant, level.name, seed, block.ablation)


def ablation_panel(rows: Sequence[Planned]) -> list[Planned]:
    """The ablations among ``rows``, after what they vary (g-bound-10 after g) and FedAvg, on the same seeds."""
    extra = [row for row in rows if row.ablation]
    bases, seeds = {"fedavg", *(row.variant.split("-")[0] for row in extra)}, {row.seed for row in extra}
    return (
        [row for row in rows if not row.ablation and row.variant in bases and row.seed in seeds] + extra
        if extra
        else []
    )


def reductions(scale: Scale, name: str) -> list[str]:
    """What this scale changes against the paper, a line a task; empty at the scale ``paper``."""
    experiment, paper, lines = EXPERIMENTS[name], SETTINGS["paper"], []
    changes = experiment.changes.get(scale, {})
    for task in dict.fromkeys(task for block in experiment.blocks for task in tasks_of(block.tasks, scale)):
        ours, theirs = SETTINGS[scale][task] | changes, paper.get(task, paper["mnist"])
        here, there = _ranges(experiment, task, scale), _ranges(experiment, task, "paper")
        parts = [
            f"{key} {theirs.get(key, _UNSET.get(key, 'default'))} → {value}"
            for key, value in ours.items()
            if key != "eval_every" and key not in here and theirs.get(key) != value
        ]
        parts += [f"{key} {there[key]} → {here[key]}" for key in here if here[key] != there[key]]
        if task not in paper:
            parts.insert(0, "scikit-learn's digits and a softmax regression in place of the paper's data and models")
        if parts:
            lines.append(f"{task}: {'; '.join(parts)}")
    return lines


def _ranges(experiment: Experiment, task: str, scale: Scale) -> dict[str, str]:
    """From where to where the experiment varies a number itself."""
    values: dict[str, list[float]] = {}
    for block in experiment.blocks:
        for level in block.levels(task, scale):
            for key, value in level.settings.items():
                if isinstance(value, float | int):
                    values.setdefault(key, []).append(value)
    return {key: f"{min(found):g} to {max(found):g}" for key, found in values.items()}


_UNSET = {"subset": "all", "model_options.hidden": 256, "model_options.layers": 2}
