"""``fedhyper reproduce``: the paper's figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhyper.lab.commands.options import Device, Quiet


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
    pages: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="publish the page here with its runs; those that are here are not run again"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="runs at a time", show_default="cores")] = None,
    tasks: Annotated[str, typer.Option(metavar="A,B", help="run on these datasets only", show_default="all")] = "",
    device: Device = "cpu",
    no_run: Annotated[
        bool, typer.Option("--no-run", help="only write the pages, from the runs that are there")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="do not ask before the scale paper; needed where there is no terminal")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """A figure or table of the paper: its runs, its figures, and a page with a verdict on every claim.

    fig-g fig-sl fig-cl fig-robust fig-compose fig-curve tab-noniid fig-combine overhead own-rates awake all

    fedhyper reproduce fig-g fig-sl --scale paper --tasks mnist

    The same command goes on where it was stopped.
    """
    from fedhyper.lab.paper.reproduce import reproduce as reproduce_experiment

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
        confirm=scale == "paper" and not yes,
        quiet=quiet,
    )
