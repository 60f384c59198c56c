"""``fedhyper data``: the datasets on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fedhyper.errors import UserError
from fedhyper.lab.commands.options import Json, Quiet

data_app = typer.Typer(help="Datasets: where they are, download, verify.", no_args_is_help=True)


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
    """Read every byte and compare with what was published.

    Exit code 5 if a file is damaged, or a dataset that was named is missing; without names all are looked at.
    """
    from fedhyper.sim.data.files import dataset_status

    _refuse_digits(names or ())
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

    _refuse_digits(names)
    for name in names:
        dataset(name)  # a typing mistake is said before the first download
    statuses = [fetch(name, progress=not quiet) for name in names]
    if not quiet:
        _print_data(statuses, as_json=False)


def _refuse_digits(names: Sequence[str]) -> None:
    if "digits" in names:  # a task like the others, but no dataset of ours
        raise UserError("digits come with scikit-learn: there is nothing to fetch or check; leave the name out")


def _print_data(statuses: Sequence[Any], as_json: bool) -> None:
    for status in statuses:
        if as_json:
            files = [{"path": f.path, "state": f.state, "size": f.size, "sha256": f.sha256} for f in status.files]
            record = {"name": status.name, "state": status.state, "directory": str(status.directory), "files": files}
            print(json.dumps(record))
        else:
            size = f"{status.size / 1e6:.1f} MB" if status.size else ""
            print(f"{status.name:<12} {status.state:<11} {size:>9}  {status.directory}")
