"""``fedhyper sweep``: a grid of experiments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedhyper.lab.commands.options import Device, Experiment, Imports, Json, NoReport, Out, Quiet, Track
from fedhyper.lab.outputs import experiment_name, print_table, say_report


def sweep(
    experiment: Experiment,
    axes: Annotated[list[str], typer.Argument(metavar="key=a,b,c | key=0..4 | METHOD:key=a,b ...", show_default=False)],
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="cells at a time", show_default="cores")] = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
    no_report: NoReport = False,
    track: Track = None,
    imports: Imports = None,
) -> int:
    """Run a grid of experiments. The same command continues it, whatever ended it.

    fedhyper sweep fmnist local_lr=0.001,0.01,0.1 seed=0..2 method=fedavg,fedhyper

    fedhyper sweep digits method=fedavg,fedavgm,fedhyper fedavg:local_lr=0.1,0.3,1.0 fedavgm:options.momentum=0.8,0.9
    """
    from fedhyper.lab.config.toml import read_toml
    from fedhyper.lab.plugins import check_imports, import_modules
    from fedhyper.lab.starters import experiment_file
    from fedhyper.lab.sweep.checking import check_cells
    from fedhyper.lab.sweep.display import make_sweep_display
    from fedhyper.lab.sweep.grid import make_cells, parse_axes
    from fedhyper.lab.sweep.run import ended_before, refuse_shorter, run_sweep
    from fedhyper.lab.trackers import check_trackers, prepare_trackers

    check_trackers(track or ())
    experiment = experiment_file(experiment)
    target = out or Path("runs") / f"{experiment_name(experiment)}-sweep"
    import_modules(imports or ())
    for started in (target / "cells").glob("*/env.json"):
        check_imports(started.parent)
    values = read_toml(experiment)
    grid = parse_axes(axes)
    cells = make_cells(values, grid, str(experiment))
    refuse_shorter(cells, target)
    check_cells([cell for cell in cells if ended_before(cell, target) is None])
    prepare_trackers(track or ())
    outcomes = run_sweep(
        cells,
        target,
        description={"experiment": experiment.name, **grid.description()},
        jobs=jobs,
        device=device,
        track=track or (),
        display=make_sweep_display(quiet=quiet, as_json=as_json),
    )
    if not quiet and not as_json:
        print_table([target])
    if not no_report:
        say_report(target, quiet=quiet or as_json)
    failed = [one for one in outcomes if one.status not in ("finished", "diverged")]
    if failed:
        shown = f"{failed[0].cell.name}: {failed[0].message}"
        print(f"fedhyper: {len(failed)} of {len(outcomes)} cells failed; the first: {shown}", file=sys.stderr)
    return failed[0].exit_code if failed else 0
