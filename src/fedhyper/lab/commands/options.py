"""Arguments and options that several commands share, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Experiment = Annotated[
    Path,
    typer.Argument(
        metavar="EXPERIMENT", help="a config file, or digits, mnist, fmnist, cifar10, shakespeare", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value]...", help="change the config", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="where the files go", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1024, help="cores; does not change the result", show_default="every core")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and notes")]
Json = Annotated[bool, typer.Option("--json", help="print JSON lines, for programs")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="a module or file.py of yours to import first", show_default=False),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="TRACKER", help="also log to tensorboard, wandb, mlflow or trackio", show_default=False
    ),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="do not write report.html")]
