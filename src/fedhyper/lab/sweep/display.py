"""What a person sees of a sweep: how far it is, which cells run, how each ended."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from fedhyper.errors import printable
from fedhyper.lab.running.words import duration, percent

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from fedhyper.lab.sweep.run import Outcome, SweepListener


def make_sweep_display(*, quiet: bool = False, as_json: bool = False, out: IO[str] | None = None) -> SweepListener:
    """The display that suits where the output goes."""
    stream = out or sys.stdout
    if as_json:
        return SweepJson(stream)
    if quiet:
        return SweepQuiet()
    return SweepLive() if stream.isatty() else SweepLines(stream)


class SweepQuiet:
    """Prints nothing and keeps count, for the displays built on it."""

    def begin(self, total: int, skipped: int, jobs: int) -> None:
        """Start the count of cells and the clock."""
        self.total, self.done, self.jobs = total, skipped, jobs
        self.skipped, self.started = skipped, time.monotonic()
        self.partly = 0.0

    def progress(self, running: dict[str, tuple[int, int, float | None]]) -> None:
        """Count cells that are half done as half."""
        self.partly = sum(t / rounds for t, rounds, _ in running.values())

    def ended(self, outcome: Outcome) -> None:
        """One cell more is done."""
        self.done += 1

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Prints no closing line."""

    @property
    def left(self) -> str:
        """How long the rest will take, from how long what was done took."""
        here = self.done - self.skipped + self.partly
        if self.done >= self.total:
            return "0 s"
        if here < 0.05:
            return "?"
        return duration((time.monotonic() - self.started) / here * max(0.0, self.total - self.skipped - here))


class SweepJson(SweepQuiet):
    """A JSON object a cell, at the end, in the order of the grid."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """All cells, those that had ended before too."""
        for one in outcomes:
            record = {"cell": one.cell.name, "status": one.status, "accuracy": one.accuracy, "skipped": one.skipped}
            print(json.dumps(record | ({"message": one.message} if one.message else {})), file=self.out, flush=True)


class SweepLines(SweepQuiet):
    """A line a cell, for logs."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out

    def begin(self, total: int, skipped: int, jobs: int) -> None:
        """A line with the number of cells, of those done before, and of those run at a time."""
        super().begin(total, skipped, jobs)
        self._say(f"{total} cells, {skipped} of them done before, {jobs} at a time")

    def ended(self, outcome: Outcome) -> None:
        """A line on how the cell ended and how long the rest will take."""
        super().ended(outcome)
        self._say(f"[{self.done}/{self.total}] {describe(outcome)}  {self.left} left")

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """A line that counts the cells by how they ended."""
        self._say(closing(outcomes, self.total))

    def _say(self, line: str) -> None:
        print(line, file=self.out, flush=True)


class SweepLive(SweepQuiet):
    """The running cells in place, the ended ones above them."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self.running: dict[str, tuple[int, int, float | None]] = {}

    def begin(self, total: int, skipped: int, jobs: int) -> None:
        """Start the live display."""
        from rich.live import Live

        super().begin(total, skipped, jobs)
        self._live = Live(get_renderable=self._render, refresh_per_second=4)
        self._live.start()

    def progress(self, running: dict[str, tuple[int, int, float | None]]) -> None:
        """Keep the running cells for the next refresh of the screen."""
        super().progress(running)
        self.running = dict(running)

    def ended(self, outcome: Outcome) -> None:
        """A line on the ended cell, above the live ones."""
        super().ended(outcome)
        if self._live is not None:
            self._live.console.print(describe(outcome), markup=False, highlight=False, soft_wrap=True)

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """Stop refreshing and print the closing line."""
        if self._live is not None:
            self.running = {}
            self._live.stop()
            self._live.console.print(closing(outcomes, self.total), markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Text:
        from rich.text import Text

        rows = [
            f"  {printable(name, 80)}: round {t} of {rounds}, accuracy {percent(accuracy)}"
            for name, (t, rounds, accuracy) in self.running.items()
        ]
        return Text("\n".join([*rows, f"{self.done} of {self.total} cells, {self.left} left"]))


def describe(outcome: Outcome) -> str:
    """A cell in a line."""
    words = [printable(outcome.cell.name), outcome.status]
    if outcome.accuracy is not None:
        words.append(f"accuracy {percent(outcome.accuracy)}")
    return "  ".join([*words, printable(outcome.message)] if outcome.message else words)


def closing(outcomes: Sequence[Outcome], total: int) -> str:
    """All cells in a line, those that an interrupted sweep left for the next time too."""
    counts = sorted(Counter(one.status for one in outcomes).items())
    left = [("left to the same command", total - len(outcomes))] if total > len(outcomes) else []
    return f"{total} cells: " + ", ".join(f"{n} {status}" for status, n in [*counts, *left])
