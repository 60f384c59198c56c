"""The ``fedhyper`` command: its entry point, and what becomes of an error.

Nothing heavy is imported here: ``fedhyper --help`` must not wait for torch, and a missing extra must end in a hint.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from fedhyper.errors import UserError, printable

# Which extra brings the package that is missing.
_EXTRAS = {
    "sim": ("torch", "numpy", "pooch", "pydantic", "typer", "rich", "safetensors", "sklearn", "requests"),
    "report": ("altair", "vl_convert", "narwhals"),
    "flower": ("flwr", "ray"),
    **{name: (name,) for name in ("tensorboard", "wandb", "mlflow", "trackio")},
}
_BROKEN_PIPE = 141  # 128 + SIGPIPE: whoever read our output has gone


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    code = _run(arguments, debug)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = _BROKEN_PIPE
    if code > 128:
        # Interrupted in the middle of a round: its threads need not be waited for. And after a broken pipe the
        # interpreter would try to flush once more.
        os._exit(code)
    sys.exit(code)


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
        return _fail(f"{package} is not installed; run pip install 'fedhyper[{extra}]'", 2, debug)
    except BrokenPipeError:
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"fedhyper: {printable(' '.join(message.split()), 2_000)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
