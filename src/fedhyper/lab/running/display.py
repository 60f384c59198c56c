"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere, JSON for a program."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import IO, TYPE_CHECKING

from fedhyper.errors import printable
from fedhyper.lab.running.progress import Silent
from fedhyper.lab.running.words import closing, duration, number, percent, remarks, title

if TYPE_CHECKING:
    from fedhyper.lab.running.progress import Listener, Record, Summary
    from fedhyper.lab.running.run import Run


def make_display(*, quiet: bool = False, as_json: bool = False, out: IO[str] | None = None) -> Listener:
    """The display that suits where the output goes."""
    stream = out or sys.stdout
    if as_json:
        return JsonLines(stream)
    if quiet:
        return Quiet()
    if stream.isatty():
        from fedhyper.lab.running.live import LiveTable  # here: it is built on Quiet

        return LiveTable()
    return PlainLines(stream)


class Clock:
    """Seconds a round and time left, from the last ten rounds on the wall."""

    def __init__(self) -> None:
        self._at: deque[float] = deque([time.monotonic()], maxlen=11)

    def tick(self) -> None:
        """A round is done."""
        self._at.append(time.monotonic())

    @property
    def seconds(self) -> float:
        """Mean seconds of a round; 0 before the first."""
        return (self._at[-1] - self._at[0]) / max(1, len(self._at) - 1)

    @property
    def since(self) -> float:
        """Seconds since the last round was done, or since the start."""
        return time.monotonic() - self._at[-1]

    def left(self, rounds: int) -> str:
        """How long ``rounds`` more will take."""
        return duration(self.seconds * rounds)


class Quiet(Silent):
    """Notes, on stderr, and nothing else: what a person asked for with ``--quiet``."""

    def note(self, text: str) -> None:
        """One line on stderr."""
        print(f"fedhyper: note: {printable(text, 500)}", file=sys.stderr, flush=True)


class JsonLines(Quiet):
    """The records as they are in ``metrics.jsonl``, then ``{"summary": ...}``."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out

    def round(self, run: Run, record: Record) -> None:
        """The record as one line of JSON."""
        print(json.dumps(record, allow_nan=False), file=self.out, flush=True)

    def end(self, run: Run, summary: Summary) -> None:
        """The summary and the run directory as the last line of JSON."""
        print(json.dumps({"summary": summary, "out": str(run.out)}, allow_nan=False), file=self.out, flush=True)


class PlainLines(Quiet):
    """A line a round, for logs."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out
        self.clock = Clock()
        self._trained_by = ""

    def start(self, run: Run) -> None:
        """What is being run, and from which round."""
        self._say(title(run.config))
        self._say_trained_by(run)
        if run.round:
            self._say(f"continuing after round {run.round} of {run.config.rounds}")
        self.clock = Clock()

    def _say_trained_by(self, run: Run) -> None:
        """Once, and again when it has changed: worker processes that could not be started."""
        if run.sim.trained_by not in ("", self._trained_by):
            self._trained_by = run.sim.trained_by
            self._say(f"trains {self._trained_by}")

    def round(self, run: Run, record: Record) -> None:
        """The round in numbers."""
        self._say_trained_by(run)
        self.clock.tick()
        self._say(
            f"round {record['round']:>4}/{run.config.rounds}  accuracy {percent(record['accuracy']):>8}  "
            f"loss {number(record['train_loss']):>8}  global_lr {number(record['global_lr']):>8}  "
            f"local_lr {number(record['local_lr']):>10}  {self.clock.seconds:.2f} s/round  "
            f"{self.clock.left(run.config.rounds - record['round'])} left" + remarks(record)
        )

    def end(self, run: Run, summary: Summary) -> None:
        """How the run ended, and where its files are."""
        self._say(closing(run.config, summary))
        self._say(f"files in {printable(str(run.out))}")

    def _say(self, line: str) -> None:
        print(line.replace(" · ", ", "), file=self.out, flush=True)  # a log may be ASCII
