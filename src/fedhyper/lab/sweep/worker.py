"""A process that runs the cells of a sweep one after the other: ``python -m fedhyper.lab.sweep.worker``.

It reads a cell a line (JSON) from stdin and answers on stdout, a line a round and a last one: finished, diverged,
failed or interrupted. A process and not a thread: a cell that takes the interpreter down must not take the sweep
with it, and torch is imported once for many cells.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

from fedhyper.errors import TrainingStopped, UserError, printable
from fedhyper.lab.config.model import make_config
from fedhyper.lab.plugins import import_inherited
from fedhyper.lab.running.interrupt import Interrupted
from fedhyper.lab.running.progress import Record, Silent
from fedhyper.lab.running.run import Run, run_experiment
from fedhyper.lab.trackers import Tracking

_INTERVAL = 0.2  # seconds between two messages about rounds
_PR_SET_PDEATHSIG = 1


class _Report(Silent):
    """Tells the parent how far the cell is."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out
        self.told = 0.0

    def round(self, run: Run, record: Record) -> None:
        """Not every round: a round of a small model takes a millisecond."""
        if time.monotonic() - self.told >= _INTERVAL:
            self.told = time.monotonic()
            _tell(self.out, {"round": record["round"], "accuracy": run.progress.final_accuracy})


def _tell(out: IO[str], message: dict[str, Any]) -> None:
    print(json.dumps(message), file=out, flush=True)


def run_cell(order: dict[str, Any], out: IO[str]) -> dict[str, Any]:
    """Run or continue one cell; the last message about it comes back."""
    path = Path(order["out"])
    try:
        import_inherited()
        config = make_config(order["config"], str(path))
        display = Tracking(_Report(out), order["track"])
        summary = run_experiment(
            config, path, resume=path.exists(), workers=order["workers"], device=order["device"], display=display
        )
    except TrainingStopped as error:
        return {"done": "diverged", "message": str(error), "exit_code": 0}
    except Interrupted as error:
        return {"done": "interrupted", "message": str(error), "exit_code": error.exit_code}
    except UserError as error:
        return {"done": "failed", "message": str(error), "exit_code": error.exit_code}
    except Exception as error:  # the sweep goes on, and says so
        traceback.print_exc()
        return {"done": "failed", "message": printable(f"{type(error).__name__}: {error}"), "exit_code": 1}
    return {"done": "finished", "accuracy": summary["final_accuracy"], "seconds": summary["seconds"], "exit_code": 0}


def main() -> None:
    """Serve until stdin ends."""
    if sys.platform == "linux":  # so that kill -9 of the sweep leaves nobody in its directories
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not look like a message
    for line in sys.stdin:
        answer = run_cell(json.loads(line), out)
        _tell(out, answer)
        if answer["done"] == "interrupted":
            out.flush()
            os._exit(answer["exit_code"])  # a round may have been abandoned; its threads need not be waited for


if __name__ == "__main__":
    main()
