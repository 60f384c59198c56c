"""``fedhyper run``: one experiment."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fedhyper.errors import CheckpointRefused, UserError
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
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run, never start one")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="delete the run that is there and start anew")] = False,
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
    """Run one experiment. The same command goes on with it after an interruption, and with more rounds extends it.

    fedhyper run digits

    fedhyper run fmnist method=fedexp seed=3 partition.concentration=0.1

    fedhyper run mine.toml rounds=100
    """
    from fedhyper.lab.config.model import load_config
    from fedhyper.lab.plugins import check_imports, import_modules
    from fedhyper.lab.running.directory import holds_run
    from fedhyper.lab.running.display import make_display
    from fedhyper.lab.running.opening import AnotherConfig
    from fedhyper.lab.starters import experiment_file
    from fedhyper.lab.trackers import Tracking

    if engine == "flower":
        from fedhyper.lab.running.flower_engine import run_experiment
    else:
        from fedhyper.lab.running.run import run_experiment

    if resume and fresh:
        raise UserError("--resume goes on with a run and --fresh deletes it; choose one")
    experiment = experiment_file(experiment)
    target = out or default_out(experiment, overrides or ())
    import_modules(imports or ())
    if not fresh and holds_run(target):
        resume = True
        check_imports(target)
    config = load_config(experiment, overrides or ())
    display = Tracking(make_display(quiet=quiet, as_json=as_json), track or ())
    try:
        run_experiment(config, target, resume=resume, fresh=fresh, workers=workers, device=device, display=display)
    except AnotherConfig as error:
        raise CheckpointRefused(f"{experiment}: {error}") from error
    if not no_report:
        say_report(target, quiet=quiet or as_json)
