"""The ``fedhyper`` command: its entry point, and what becomes of an error.

Nothing heavy is imported here: ``fedhyper --help`` must not wait for torch, and a missing extra must end in a hint.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from fedhyper.errors import StorageError, UserError, install, printable

# Which extra brings the package that is missing.
_EXTRAS = {
    "sim": ("torch", "numpy", "pooch", "pydantic", "typer", "rich", "safetensors", "sklearn", "requests"),
    "report": ("altair", "vl_convert", "narwhals"),
    "flower": ("flwr", "ray"),
    **{name: (name,) for name in ("tensorboard", "wandb", "mlflow", "trackio")},
}
_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_BROKEN_PIPE = 141  # 128 + SIGPIPE: whoever read our output has gone


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    _open_streams()
    code, written = _run(arguments, debug), True
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code, written = _unwritten(error, debug), False
    if code > 128 or not written:
        # Interrupted in the middle of a round: its threads need not be waited for. And where output cannot be written
        # the interpreter would try to flush once more.
        os._exit(code)
    sys.exit(code)


def _open_streams() -> None:
    """A stream that was closed before we came (``>&-``) is None: what goes there goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest free descriptor, its own: a run's file there would get what libraries print.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _run(arguments: list[str], debug: bool) -> int:
    try:
        from fedhyper.lab.commands import invoke

        return invoke(arguments)
    except UserError as error:
        return _fail(str(error), error.exit_code, debug)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((name for name, packages in _EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        return _fail(f"{package} is not installed; run {install(extra)}", 2, debug)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click or rich met it before us, and says 1
            return _BROKEN_PIPE
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = printable(str(error.filename), 60)
            return _fail(f"{name}: {error.strerror}; choose a shorter one", StorageError.exit_code, debug)
        if error.filename is not None or error.errno not in _OUTPUT:
            raise
        return _unwritten(error, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)


def _unwritten(error: OSError, debug: bool) -> int:
    """What was printed did not arrive: its reader has gone, or the disk it goes to is full."""
    if isinstance(error, BrokenPipeError):
        return _BROKEN_PIPE
    with contextlib.suppress(OSError):  # stderr may go to the same place
        _fail(f"the output cannot be written: {error.strerror}; free space, or send it elsewhere", 74, debug)
    return StorageError.exit_code


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"fedhyper: {printable(' '.join(message.split()), 2_000)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
