"""From the tables to runs: which cells of a sweep an experiment is made of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhyper.lab.config.model import make_config
from fedhyper.lab.config.toml import put
from fedhyper.lab.paper.blocks import Block, Experiment, Level
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.variants import REPEATED, REPEATED_TASKS, SETTINGS, VARIANTS, Scale, tasks_of
from fedhyper.lab.sweep.grid import Cell, cell_name


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
    """All runs of an experiment: first one seed of everything, in the order of its table; every config is checked here.

    So a partial result is useful, and in timings what the machine does meanwhile hits all methods alike.
    """
    experiment = EXPERIMENTS[name]
    rows: dict[str, Planned] = {}
    for block in experiment.blocks:
        if block.ablation and scale == "paper":
            continue
        for task in tasks_of(block.tasks, scale):
            for level in block.levels(task, scale):
                for variant in block.variants:
                    for seed in range(_seeds(experiment, block, scale, task, variant, level)):
                        row = _row(experiment, scale, block, task, variant, level, seed)
                        rows.setdefault(row.cell.name, row)
    return sorted(rows.values(), key=lambda row: row.seed)


def _seeds(experiment: Experiment, block: Block, scale: Scale, task: str, variant: str, level: Level) -> int:
    """How many seeds: repetitions of a timing, two at smoke, three of what several figures of the paper share."""
    if experiment.timed:
        return block.seeds
    shared = level.settings.items() <= SETTINGS[scale][task].items()
    again = scale == "paper" and task in REPEATED_TASKS and variant in REPEATED and shared
    return min(block.seeds, 3 if again else 2 if scale == "smoke" else 1)


def _row(
    experiment: Experiment, scale: Scale, block: Block, task: str, variant: str, level: Level, seed: int
) -> Planned:
    chosen = VARIANTS[variant]
    flat = SETTINGS[scale][task] | experiment.changes.get(scale, {}) | chosen.settings | level.settings
    values: dict[str, Any] = {"task": task, "method": chosen.method, "seed": seed, "norm_cap": 0.0}
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
