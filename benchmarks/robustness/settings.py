"""A setting, one row of a table: a config without method, rates and seed, and how much is run of it.

The same setting in two axes is run once: its name in the store is what it sets (``Setting.key``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Flat = dict[str, Any]

# Seeds that nothing was chosen on: the rule was made on 0 to 7, its first figures were 10 to 12.
SEEDS = (20, 21, 22)
SIX = (20, 21, 22, 23, 24, 25)

DIGITS: Flat = {
    "task": "digits", "model": "mlp", "rounds": 60, "clients": 30, "clients_per_round": 10, "batch_size": 16,
    "eval_every": 1, "partition.kind": "dirichlet", "partition.concentration": 0.5,
}  # fmt: skip
FMNIST: Flat = {
    "task": "fmnist", "model": "cnn", "rounds": 50, "clients": 100, "clients_per_round": 10, "batch_size": 64,
    "eval_every": 2, "subset": 15_000, "partition.kind": "dirichlet", "partition.concentration": 0.5,
}  # fmt: skip
SPEECH: Flat = {
    "task": "shakespeare", "model": "lstm", "rounds": 100, "clients_per_round": 10, "batch_size": 32, "eval_every": 5,
    "local_steps": 5, "partition.kind": "natural",
}  # fmt: skip
# examples/finetune/sst2.toml: a pretrained MiniLM with LoRA
SST2: Flat = {
    "task": "sst2", "model": "minilm-lora", "local_optimizer": "adamw", "rounds": 10, "clients": 40,
    "clients_per_round": 4, "local_steps": 16, "batch_size": 8, "eval_every": 2, "partition.kind": "dirichlet",
    "partition.concentration": 5.0, "partition.min_size": 8, "model_options.rank": 8, "model_options.top": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One row of a table.

    name     what the table calls it
    values   keys of its config
    target   points that fedhyper may end under the oracle
    seeds    of fedhyper's runs and of the two best rivals
    search   how many of the seeds all rivals are run on
    middle   local rate at which the search for the rivals' best begins
    least    local rates that are tried at least
    ours     seeds of fedhyper's runs, where there are more of them
    starts   fedhyper's initial local rates; one is enough, since it does not read it
    options  of fedhyper's, where they are changed: it is then held against its own run without the change
    method   fedhyper, or one that wraps it
    defended whether fedhyper has ``norm_cap`` as it comes, the defence against hostile clients; rivals never have it
    """

    name: str
    values: Flat
    target: float = 1.0
    seeds: tuple[int, ...] = SEEDS
    search: int = 3
    middle: float = 0.1
    least: int = 4
    starts: tuple[float, ...] = (1e-3,)
    ours: tuple[int, ...] = ()
    options: Flat = field(default_factory=dict)
    method: str = "fedhyper"
    defended: bool = False

    @property
    def key(self) -> str:
        """What it sets, as text: equal for equal settings, and safe against new keys whose default changes nothing."""
        return " ".join(f"{name}={value}" for name, value in sorted(self.values.items()))

    @property
    def family(self) -> str:
        """``digits``, which take minutes and are run first, or ``images``: all else."""
        return "digits" if self.values["task"] == "digits" else "images"


@dataclass(frozen=True)
class Axis:
    """One table: what is varied, what is asked for, and its rows."""

    title: str
    target: str
    rows: tuple[Setting, ...]
    worst: float | None = None  # points that any single run may end under the oracle's mean
    late: int | None = None  # rounds that fedhyper may be later at 95 % of the oracle's end
    note: str = ""  # what a reader of the table should know
