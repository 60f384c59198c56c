"""The commands, each a few lines: read what was asked for, call what does it, print what came out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import fedhyper
from fedhyper.errors import UserError
from fedhyper.lab.outputs import default_out, print_table, say_report

app = typer.Typer(
    name="fedhyper",
    help="Learning rates for federated learning, set while training runs.\n\nStart with [bold]fedhyper demo[/].",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Datasets: where they are, download, verify.", no_args_is_help=True)
flower_app = typer.Typer(help="Flower: many machines.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")

Experiment = Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="the config", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value]...", help="change the config", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="where the files go", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1024, help="threads; does not change the result", show_default="every core")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")]
Json = Annotated[bool, typer.Option("--json", help="print JSON lines, for programs")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="a module or file.py of yours to import first", show_default=False),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="do not write report.html")]
# The base of every error in how a command was typed. Its module depends on typer's version: click up to 0.2x, a copy of
# click inside typer after it. Only what typer itself exports is there in both, so click is never imported here.
_UsageError: Any = typer.BadParameter.__base__


def invoke(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments``; the exit code comes back, errors are raised."""
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name="fedhyper", standalone_mode=False)
    except _UsageError as error:
        message = error.format_message()
        if not message:  # a group without a command: rich has printed the help already
            return 2
        sentences = re.split(r"(?<=[.?]) ", message)  # each of them once: typer and click both ask "Did you mean"
        raise UserError(" ".join(dict.fromkeys(sentences))) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedhyper {fedhyper.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error; works anywhere")] = False,
) -> None:
    """Options of every command; ``--debug`` is taken out by ``main`` before this is asked."""


@app.command()
def demo(
    out: Out = None,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """FedAvg and FedHyper side by side from a rate 100 times too small. No network, under a minute."""
    from fedhyper.lab.demo import run_demo

    run_demo(out, quiet=quiet, report=not no_report)


@app.command()
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
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also log for TensorBoard")] = False,
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
    from fedhyper.lab.running.progress import Listener

    if engine == "flower":
        from fedhyper.lab.running.flower_engine import run_experiment
    else:
        from fedhyper.lab.running.run import run_experiment

    target = out or default_out(experiment, overrides or ())
    import_modules(imports or ())
    if resume:
        check_imports(target)
    config = load_config(experiment, overrides or ())
    display: Listener = make_display(quiet=quiet, as_json=as_json)
    if tensorboard:
        from fedhyper.lab.running.tensorboard import TensorBoard

        display = TensorBoard(display)
    run_experiment(config, target, resume=resume, workers=workers, device=device, display=display)
    if not no_report:
        say_report(target, quiet=quiet or as_json)


@app.command()
def sweep(
    experiment: Experiment,
    axes: Annotated[list[str], typer.Argument(metavar="key=a,b,c | key=0..4 ...", show_default=False)],
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="cells at a time", show_default="cores")] = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
    no_report: NoReport = False,
    imports: Imports = None,
) -> int:
    """Run a grid of experiments. The same command continues it, whatever ended it.

    fedhyper sweep experiments/fmnist.toml local_lr=0.001,0.01,0.1 seed=0..2 method=fedavg,fedhyper
    """
    from fedhyper.lab.config.model import read_toml
    from fedhyper.lab.plugins import check_imports, import_modules
    from fedhyper.lab.sweep.display import make_sweep_display
    from fedhyper.lab.sweep.grid import make_cells, parse_axes
    from fedhyper.lab.sweep.run import run_sweep

    target = out or Path("runs") / f"{experiment.stem}-sweep"
    import_modules(imports or ())
    for started in (target / "cells").glob("*/env.json"):
        check_imports(started.parent)
    values = read_toml(experiment)
    fixed, grid = parse_axes(axes)
    cells = make_cells(values, fixed, grid, str(experiment))
    outcomes = run_sweep(
        cells,
        target,
        description={"experiment": experiment.name, "axes": grid, "fixed": fixed},
        jobs=jobs,
        device=device,
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


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="runs, sweeps, or directories of them")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="the page", show_default="report.html, if nothing else is asked for"
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write the figures as PNG, SVG and PDF", show_default=False)
    ] = None,
    table: Annotated[
        Literal["md", "latex", "csv"] | None, typer.Option(help="print the table", show_default=False)
    ] = None,
    title: Annotated[str | None, typer.Option(help="heading of the page", show_default=False)] = None,
) -> None:
    """One self-contained page of runs, their figures as files, their table: any of the three, together or alone.

    fedhyper report runs/ -o report.html

    fedhyper report runs/fmnist-sweep --figures figures/

    fedhyper report runs/fmnist-sweep --table latex
    """
    if table is not None:
        from fedhyper.lab.results.tables import headline_table

        print(headline_table(runs, table), end="")
    if figures is not None:
        from fedhyper.lab.results.report import write_figures

        for path in write_figures(runs, figures):
            print(path)
    if out is not None or (table is None and figures is None):
        from fedhyper.lab.results.report import write_report

        print(write_report(runs, out or Path("report.html"), title=title))


@app.command()
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="ID...", help="fig-g, fig-sl, ..., awake, or all", show_default=False)
    ],
    scale: Annotated[
        Literal["smoke", "small", "paper"], typer.Option(help="digits, fewer rounds, or the real thing")
    ] = "smoke",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="where the files go")] = Path(
        "runs/reproduce"
    ),
    pages: Annotated[Path | None, typer.Option(metavar="DIR", help="also write the page here, to publish it")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="runs at a time", show_default="cores")] = None,
    tasks: Annotated[str, typer.Option(metavar="A,B", help="run on these datasets only", show_default="all")] = "",
    device: Device = "cpu",
    no_run: Annotated[
        bool, typer.Option("--no-run", help="only write the pages, from the runs that are there")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before the scale paper")] = False,
    quiet: Quiet = False,
) -> int:
    """A figure or table of the paper: its runs, its figures, and a page with a verdict on every claim.

    fig-g fig-sl fig-cl fig-robust fig-compose fig-curve tab-noniid fig-combine overhead own-rates awake all

    fedhyper reproduce fig-g fig-sl --scale paper --tasks mnist

    The same command goes on where it was stopped.
    """
    from fedhyper.lab.paper.reproduce import reproduce as reproduce_experiment

    asks = scale == "paper" and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    chosen = [task.strip() for task in tasks.split(",") if task.strip()]
    return reproduce_experiment(
        names,
        scale,
        out,
        tasks=chosen,
        parallel=jobs,
        device=device,
        pages=pages,
        run=not no_run,
        confirm=asks,
        quiet=quiet,
    )


@app.command()
def partition(
    experiment: Experiment,
    overrides: Overrides = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw it: .png, .svg or .pdf")] = None,
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """Who holds what: a table of the clients, and a picture.

    fedhyper partition experiments/fmnist.toml partition.concentration=0.1 --figure partition.png
    """
    from fedhyper.lab.config.model import load_config
    from fedhyper.lab.plugins import import_modules
    from fedhyper.lab.results.partition_table import print_partition
    from fedhyper.lab.running.build import make_partition

    import_modules(imports or ())
    config = load_config(experiment, overrides or ())
    _, split = make_partition(config)
    record = split.to_json()
    if as_json:
        print(json.dumps(record))
    else:
        print_partition(config, record)
    if figure is not None:
        from fedhyper.lab.results.charts.chart import save
        from fedhyper.lab.results.charts.partition import partition_chart

        save(partition_chart(record), figure, title=f"{config.task}: who holds what")
        if not as_json:
            print(f"picture: {figure}")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one method", show_default=False)] = None,
    as_json: Json = False,
    imports: Imports = None,
) -> None:
    """Every method: what it does and what can be set of it; with a name, what each option does.

    fedhyper methods fedhyper-g+cl
    """
    from fedhyper.lab.methods_table import describe, methods_table, print_methods
    from fedhyper.lab.plugins import import_modules

    import_modules(imports or ())
    if not as_json:
        print_methods(name)
        return
    for record in methods_table() if name is None else [describe(name)]:
        print(json.dumps(record))


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """Which datasets there are, which are here, and where."""
    from fedhyper.sim.data.files import dataset_status

    _print_data(dataset_status(check=False), as_json)


@data_app.command("check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False)] = None,
    as_json: Json = False,
) -> int:
    """Read every byte and compare with what was published. Exit code 5 if a file is damaged or missing."""
    from fedhyper.sim.data.files import dataset_status

    statuses = dataset_status(names or None)
    _print_data(statuses, as_json)
    problems = [file.problem for status in statuses for file in status.files if file.problem]
    for problem in problems:
        print(f"fedhyper: {problem}", file=sys.stderr)
    wanted = ("missing", "corrupt") if names else ("corrupt",)
    return 5 if any(file.state in wanted for status in statuses for file in status.files) else 0


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mnist fmnist cifar10 shakespeare")],
    quiet: Quiet = False,
) -> None:
    """Download what is missing, verified by SHA-256.

    fedhyper data fetch fmnist
    """
    from fedhyper.sim.data.files import fetch
    from fedhyper.sim.data.published import dataset

    for name in names:
        dataset(name)  # a typing mistake is said before the first download
    statuses = [fetch(name, progress=not quiet) for name in names]
    if not quiet:
        _print_data(statuses, as_json=False)


def _print_data(statuses: Sequence[Any], as_json: bool) -> None:
    for status in statuses:
        if as_json:
            files = [{"path": f.path, "state": f.state, "size": f.size, "sha256": f.sha256} for f in status.files]
            record = {"name": status.name, "state": status.state, "directory": str(status.directory), "files": files}
            print(json.dumps(record))
        else:
            size = f"{status.size / 1e6:.1f} MB" if status.size else ""
            print(f"{status.name:<12} {status.state:<11} {size:>9}  {status.directory}")


@flower_app.command("new")
def flower_new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a directory that does not exist yet")],
    task: Annotated[str, typer.Option(help="what the app learns")] = "digits",
) -> None:
    """Write a Flower app to start from.

    fedhyper flower new my-app && cd my-app && flwr run . --stream
    """
    from fedhyper.lab.flower_new import new_app

    new_app(directory, task)
    print(f"{directory}: a Flower app; next: cd {directory} && flwr run . --stream")
