"""``fedhyper report``: runs as a page, as figures, as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhyper.errors import UserError
from fedhyper.storage.files import disk_errors


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
    if out is not None:
        _refuse_other(out)
    named = sys.stdout if table is None else sys.stderr  # a table goes into a file
    if table is not None:
        from fedhyper.lab.results.tables import headline_table

        print(headline_table(runs, table), end="")
    if figures is not None:
        from fedhyper.lab.results.report import write_figures

        for path in write_figures(runs, figures):
            print(path, file=named)
    if out is not None or (table is None and figures is None):
        from fedhyper.lab.results.report import write_report

        print(write_report(runs, out or Path("report.html"), title=title), file=named)


def _refuse_other(out: Path) -> None:
    """A page may replace a page, not a config or a thesis."""
    with disk_errors(out):
        if not out.is_file():
            return
        with out.open("rb") as file:
            begins = file.read(15).lower()
    if begins and not begins.startswith((b"<!doctype html", b"<html")):
        raise UserError(f"--out {out} exists and is no page; choose another name, such as report.html")
