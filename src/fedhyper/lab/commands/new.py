"""``fedhyper new``: a config to start from."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="NAME.toml is written", show_default=False)],
    like: Annotated[
        str | None,
        typer.Option(
            help="digits, mnist, fmnist, cifar10 or shakespeare", show_default="NAME if it is one of them, else digits"
        ),
    ] = None,
) -> None:
    """Write a config to start from.

    fedhyper new mine --like fmnist && fedhyper run mine.toml
    """
    from fedhyper.lab.starters import new_experiment

    path = new_experiment(name, like)
    print(f"{path}: a config to change; next: fedhyper run {shlex.quote(str(path))}")
