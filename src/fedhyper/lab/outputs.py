"""What a command leaves or prints when its runs are done: where they go, the report beside them, their table."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedhyper.errors import StorageError, UserError, install


def default_out(experiment: Path, overrides: Sequence[str]) -> Path:
    """``runs/fmnist/method=fedexp,seed=3``: the same command finds its run again."""
    from fedhyper.lab.config.identity import CHANGEABLE
    from fedhyper.lab.config.toml import parse_override
    from fedhyper.lab.sweep.grid import cell_name

    changes = [parse_override(text) for text in overrides]
    # rounds=100 is for the run that is there: what may change in a run is no part of its name
    name = cell_name((key, value) for key, value in changes if key not in CHANGEABLE)
    return Path("runs") / experiment_name(experiment) / name


def experiment_name(experiment: Path) -> str:
    """What the runs of a config are called: its file's name, or, for a run's ``config.toml``, that run's."""
    if experiment.name != "config.toml":
        return experiment.stem
    inside = [part for part in experiment.parent.parts if part not in (os.sep, "..", "runs", "cells")]
    return "-".join(inside[-2:]) or "config"


def say_report(directory: Path, *, quiet: bool) -> Path | None:
    """Write ``report.html`` into a directory of runs and say where it is; without the extra say how to get it."""
    from fedhyper.lab.results.report import write_report

    path = directory / "report.html"
    try:
        write_report([directory], path)
    except StorageError:
        raise
    except (UserError, ModuleNotFoundError) as error:
        # The run is done and on disk: the missing page must not make it a failure.
        print(f"fedhyper: note: no report ({error}); {install('report')}", file=sys.stderr)
        return None
    if not quiet:
        print(f"report: {path}")
    return path


def print_table(paths: Sequence[Path]) -> None:
    """The headline tables of all runs under ``paths``; on a terminal without the columns on cost, which need width."""
    from fedhyper.lab.results.groups import extended
    from fedhyper.lab.results.parts import make_parts
    from fedhyper.lab.results.stored import load_runs
    from fedhyper.lab.results.tables import COLUMNS, headline_rows, headline_table

    runs = load_runs(paths)
    for sentence in extended(runs):
        print(f"fedhyper: note: {sentence}", file=sys.stderr)
    if not sys.stdout.isatty():
        print(headline_table(paths, "md"))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    for part in make_parts(runs):
        table = Table(box=None, pad_edge=False, padding=(0, 2), title=Text(part.title) if part.title else None)
        for i, heading in enumerate(COLUMNS[:5]):
            table.add_column(heading, justify="right" if i else "left", overflow="fold")
        for row in headline_rows(part.groups):
            table.add_row(*(Text(cell) for cell in row.cells[:5]), style="bold" if row.best else None)
        Console().print(table)
