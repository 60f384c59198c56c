"""What robustness.py and sensitivity.py share: settings as configs, and their runs as cells of a sweep, resumable.

A cell is a run directory under ``OUT/cells``, like those of ``fedhyper sweep``: finished ones are not run again, broken
ones are continued, and ``fedhyper report OUT`` shows them.

A cell's score is the mean accuracy of the last five rounds: on 360 test images one round alone says little. To pay for
no more evaluations than that, a run goes to five rounds before its end with few of them and is then extended with one
a round, which gives the bits of one long run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedhyper.errors import UserError
from fedhyper.lab.config.model import make_config
from fedhyper.lab.config.toml import put
from fedhyper.lab.results.metrics import late_accuracy
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.sweep.display import make_sweep_display
from fedhyper.lab.sweep.grid import Cell, cell_name
from fedhyper.lab.sweep.run import ended_before, run_sweep

LAST = 5  # rounds whose accuracies are averaged
ALIASES = {"local-adam": {"method": "fedavg", "local_optimizer": "adam"}}  # a row of the table that is no method


class Setting(NamedTuple):
    """A task, and how a round goes."""

    task: str
    model: str
    rounds: int
    clients: int
    batch_size: int
    options: dict[str, Any]
    kind: str = "dirichlet"
    clients_per_round: int = 10
    local_epochs: int = 1
    local_steps: int = 0
    subset: int = 0  # training examples; 0: all
    concentration: float = 0.5


def make_cell(
    name: str, s: Setting, method: str, rates: tuple[float, float], seed: int, *, every: int, **options: Any
) -> Cell:
    """A run from these (local, global) rates, evaluated every so many rounds before the last five."""
    values: dict[str, Any] = {
        **{key: getattr(s, key) for key in ("task", "model", "rounds", "clients", "batch_size", "clients_per_round")},
        **{key: getattr(s, key) for key in ("local_epochs", "local_steps", "subset")},
        **ALIASES.get(method, {"method": method}),
        **{"local_lr": rates[0], "global_lr": rates[1], "seed": seed, "eval_every": every},
        "norm_cap": 0.0,  # clients are trusted: the published figures are of the plain mean; hostile.py is about others
        "max_bad_rounds": s.rounds,  # nothing ends early: all methods get the same number of rounds
        "model_options": dict(s.options),
        "options": options,
    }
    put(values, "partition.kind", s.kind)
    put(values, "partition.concentration", s.concentration)
    words = [("setting", name), ("method", method), ("local_lr", rates[0]), ("global_lr", rates[1])]
    return Cell(cell_name([*words, *options.items(), ("seed", seed)]), make_config(values, name))


def complete(cells: Sequence[Cell], out: Path, *, jobs: int | None = None) -> None:
    """Run the cells that are not there, ``jobs`` at a time (None: as many as cores)."""
    unique = [cell for cell in {cell.name: cell for cell in cells}.values() if not is_done(cell, out)]
    whole = [_with(cell, eval_every=1) for cell in unique]
    first = [
        _with(cell, rounds=cell.config.rounds - LAST)
        for cell in unique
        if cell.config.rounds > LAST and not _is_extended(cell, out)
    ]
    for stage in (first, whole):
        if stage:
            display = make_sweep_display(quiet=stage is first)
            outcomes = run_sweep(stage, out, description={"benchmark": out.name}, jobs=jobs, display=display)
            for one in outcomes:
                if one.status == "failed":
                    raise UserError(f"{one.cell.name}: {one.message}")


def is_done(cell: Cell, out: Path) -> bool:
    """Whether the run is there, to its last round."""
    return ended_before(_with(cell, eval_every=1), out) is not None


def _with(cell: Cell, **changes: Any) -> Cell:
    return Cell(cell.name, cell.config.model_copy(update=changes))


def _is_extended(cell: Cell, out: Path) -> bool:
    known = read_config(out / "cells" / cell.name)
    return known is not None and known.rounds >= cell.config.rounds


def records(cell: Cell, out: Path) -> list[dict[str, Any]]:
    """The rounds of a cell that was run."""
    [run] = load_runs([out / "cells" / cell.name])
    return run.rounds


def score(rounds: Sequence[dict[str, Any]]) -> float:
    """The accuracy of a run, averaged over its last five rounds; a fraction."""
    late = late_accuracy(rounds, rounds[-1]["round"] - LAST)
    assert late is not None
    return late
