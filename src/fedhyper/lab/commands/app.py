"""The ``fedhyper`` command line: which commands there are, in the order of its help, and what a typing mistake becomes.

A command imports what it needs when it is called: ``fedhyper --help`` must not wait for torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import fedhyper
from fedhyper.errors import UserError, plain
from fedhyper.lab.commands.data import data_app
from fedhyper.lab.commands.demo import demo
from fedhyper.lab.commands.flower import flower_app
from fedhyper.lab.commands.methods import methods
from fedhyper.lab.commands.new import new
from fedhyper.lab.commands.partition import partition
from fedhyper.lab.commands.report import report
from fedhyper.lab.commands.reproduce import reproduce
from fedhyper.lab.commands.run import run
from fedhyper.lab.commands.sweep import sweep

app = typer.Typer(
    name="fedhyper",
    help="Learning rates for federated learning, set while training runs.\n\nStart with [bold]fedhyper demo[/].",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for _command in (demo, new, run, sweep, report, reproduce, partition, methods):
    app.command()(_command)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")

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
        if meant := _override(error, arguments):
            message = f"no such option: {meant[0]}; did you mean '{meant[1]}'?"
        sentences = re.split(r"(?<=[.?]) ", message)  # each of them once: typer and click both ask "Did you mean"
        raise UserError(" ".join(dict.fromkeys(sentences))) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


def _override(error: Any, arguments: Sequence[str]) -> tuple[str, str] | None:
    """An option that is a key of the config, and how it is written: ``--rounds 3`` is ``rounds=3``."""
    option = getattr(error, "option_name", "")
    if not option.startswith("--"):
        return None
    from fedhyper.lab.config.model import KEYS

    key = next((key for key in KEYS if plain(key) == plain(option[2:])), None)
    at = next((i for i, argument in enumerate(arguments) if argument.partition("=")[0] == option), None)
    if key is None or at is None:
        return None
    following = next((word for word in arguments[at + 1 : at + 2] if not word.startswith("-")), "VALUE")
    value = arguments[at].partition("=")[2] or following
    return option, f"{key}={value}"


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
