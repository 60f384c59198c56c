"""``fedhyper flower``: apps for Flower."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

flower_app = typer.Typer(help="Flower: many machines.", no_args_is_help=True)


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
    print(f"{directory}: a Flower app; next: cd {shlex.quote(str(directory))} && flwr run . --stream")
