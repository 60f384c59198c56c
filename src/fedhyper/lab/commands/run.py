"""``fedhyper run``: one experiment."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fedhyper.lab.commands.options import (
    Device,
    Experiment,
    Imports,
    Json,
    NoReport,
    Out,
    Overrides,
    Quiet,
    Track,
    Workers,
)
from fedhyper.lab.outputs import default_out, say_report


def run(
    experiment: Experiment,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run, or extend a finished")] = False,
    workers: Workers = None,
    device: Device = "cpu",
    engine: Annotated[
        Literal["simulator", "flower"], typer.Option(help="where clients train: here, or on Flower's Simulation Engine")
    ] = "simulator",
    quiet: Quiet = False,
    as_json: Json = False,
    no_report: NoReport = False,
    track: Track = None,
    imports: Imports = None,
) -> None:
    """Run one experiment.

    fedhyper run experiments/fmnist.toml

    fedhyper run experiments/fmnist.toml method=fedexp seed=3 partition.concentration=0.1

    fedhyper run experiments/fmnist.toml rounds=100 --resume
    """
    from fedhyper.lab.config.model import load_config
    from fedhyper.lab.plugins import check_imports, import_modules
    from fedhyper.lab.running.display import make_display
    from fedhyper.lab.trackers import Tracking

    if engine == "flower":
        from fedhyper.lab.running.flower_engine import run_experiment
    else:
        from fedhyper.lab.running.run import run_experiment

    target = out or default_out(experiment, overrides or ())
    import_modules(imports or ())
    if resume:
        check_imports(target)
    config = load_config(experiment, overrides or ())
    display = Tracking(make_display(quiet=quiet, as_json=as_json), track or ())
    run_experiment(config, target, resume=resume, workers=workers, device=device, display=display)
    if not no_report:
        say_report(target, quiet=quiet or as_json)
