"""``fedhyper reproduce``: the paper's figures and tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhyper.lab.commands.options import Device, Quiet


def reproduce(
    name: Annotated[str, typer.Argument(metavar="ID", help="fig-g, fig-sl, ..., overhead, or all", show_default=False)],
    scale: Annotated[
        Literal["smoke", "small", "paper"], typer.Option(help="digits, an hour, or the real thing")
    ] = "smoke",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="where the files go")] = Path(
        "runs/reproduce"
    ),
    pages: Annotated[Path | None, typer.Option(metavar="DIR", help="also write the page here, to publish it")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024, help="runs at a time", show_default="cores")] = None,
    device: Device = "cpu",
    no_run: Annotated[
        bool, typer.Option("--no-run", help="only write the pages, from the runs that are there")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before the scale paper")] = False,
    quiet: Quiet = False,
) -> int:
    """A figure or table of the paper: its runs, its figures, and a page with a verdict on every claim.

    fig-g fig-sl fig-cl fig-robust fig-compose fig-curve tab-noniid fig-combine overhead all

    fedhyper reproduce fig-g --scale small

    The same command goes on where it was stopped.
    """
    from fedhyper.lab.paper.reproduce import reproduce as reproduce_experiment

    asks = scale == "paper" and not yes and sys.stdin.isatty() and sys.stdout.isatty()
    return reproduce_experiment(
        name, scale, out, parallel=jobs, device=device, pages=pages, run=not no_run, confirm=asks, quiet=quiet
    )
