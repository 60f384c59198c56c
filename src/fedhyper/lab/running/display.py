"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere, JSON for a program."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from fedhyper.errors import printable
from fedhyper.lab.config.model import Config

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from fedhyper.lab.running.progress import Listener, Record, Summary
    from fedhyper.lab.running.run import Run

BARS = "▁▂▃▄▅▆▇█"
ROWS = 12  # of the live table
WIDTH = 32  # of a sparkline


def make_display(*, quiet: bool = False, as_json: bool = False, out: IO[str] | None = None) -> Listener:
    """The display that suits where the output goes."""
    stream = out or sys.stdout
    if as_json:
        return JsonLines(stream)
    if quiet:
        return Quiet()
    return LiveTable() if stream.isatty() else PlainLines(stream)


def sparkline(values: Iterable[float | None], width: int = WIDTH, log: bool = False) -> str:
    """The last ``width`` values as bars between the lowest and the highest of them; rates on a log scale."""
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)][-width:]
    scaled = [math.log(v) for v in known] if log else known
    if not scaled:
        return ""
    low, span = min(scaled), max(scaled) - min(scaled)
    if span < 1e-9 * max(1.0, abs(low)):
        return BARS[3] * len(scaled)
    return "".join(BARS[min(7, int(8 * (v - low) / span))] for v in scaled)


def duration(seconds: float) -> str:
    """``7 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(value: float | None) -> str:
    """A fraction as ``71.25 %``; nothing measured is ``-``."""
    return "-" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    """Four digits."""
    return "-" if value is None else f"{value:.4g}"


def title(config: Config) -> str:
    """What is being run, in a line."""
    return printable(
        f"{config.task} · {config.model} · {config.method} · {config.clients_per_round} of {config.clients} clients "
        f"a round · local_lr {config.local_lr:g} · global_lr {config.global_lr:g} · seed {config.seed}"
    )


def closing(config: Config, summary: Summary) -> str:
    """How a run ended, in a line."""
    status = "stopped" if summary["status"] == "running" else summary["status"]
    parts = [f"{status} after round {summary['rounds']}"]
    if summary["final_accuracy"] is not None:
        parts.append(f"accuracy {percent(summary['final_accuracy'])} (best {percent(summary['best_accuracy'])})")
    if summary["target_accuracy"]:
        reached = summary["rounds_to_target"]
        target = percent(summary["target_accuracy"])
        parts.append(f"{target} reached in round {reached}" if reached else f"{target} not reached")
    return ", ".join([*parts, f"{duration(summary['seconds'])} of training"])


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

    def left(self, rounds: int) -> str:
        """How long ``rounds`` more will take."""
        return duration(self.seconds * rounds)


class Quiet:
    """Nothing but notes, on stderr."""

    def start(self, run: Run) -> None:
        """Nothing."""

    def round(self, run: Run, record: Record) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """One line on stderr."""
        print(f"fedhyper: note: {printable(text, 500)}", file=sys.stderr, flush=True)

    def end(self, run: Run, summary: Summary) -> None:
        """Nothing."""


class JsonLines(Quiet):
    """The records as they are in ``metrics.jsonl``, then ``{"summary": ...}``."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out

    def round(self, run: Run, record: Record) -> None:
        """One object a line."""
        print(json.dumps(record, allow_nan=False), file=self.out, flush=True)

    def end(self, run: Run, summary: Summary) -> None:
        """The last line."""
        print(json.dumps({"summary": summary, "out": str(run.out)}, allow_nan=False), file=self.out, flush=True)


class PlainLines(Quiet):
    """A line a round, for logs."""

    def __init__(self, out: IO[str]) -> None:
        self.out = out
        self.clock = Clock()

    def start(self, run: Run) -> None:
        """What is being run, and from which round."""
        self._say(title(run.config))
        if run.round:
            self._say(f"continuing after round {run.round} of {run.config.rounds}")
        self.clock = Clock()

    def round(self, run: Run, record: Record) -> None:
        """The round in numbers."""
        self.clock.tick()
        self._say(
            f"round {record['round']:>4}/{run.config.rounds}  accuracy {percent(record['accuracy']):>8}  "
            f"loss {number(record['train_loss']):>8}  global_lr {number(record['global_lr']):>8}  "
            f"local_lr {number(record['local_lr']):>10}  {self.clock.seconds:.2f} s/round  "
            f"{self.clock.left(run.config.rounds - record['round'])} left" + remarks(record)
        )

    def end(self, run: Run, summary: Summary) -> None:
        """How it ended, and where its files are."""
        self._say(closing(run.config, summary))
        self._say(f"files in {printable(str(run.out))}")

    def _say(self, line: str) -> None:
        print(line.replace(" · ", ", "), file=self.out, flush=True)  # a log may be ASCII


def remarks(record: Record) -> str:
    """What is unusual about a round."""
    parts = []
    if record["clients_rejected"]:
        reasons = ", ".join(f"{n} {printable(why, 60)}" for why, n in record["reject_reasons"].items())
        parts.append(f"rejected: {reasons}")
    if record["rollback"]:
        parts.append("rolled back")
    return f"  [{'; '.join(parts)}]" if parts else ""


class LiveTable(Quiet):
    """A table that grows in place, with sparklines of accuracy and rates under it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._records: list[Record] = []
        self.clock = Clock()

    def start(self, run: Run) -> None:
        """Put the table on the screen."""
        from rich.live import Live

        self._records, self.clock = [], Clock()
        self._run = run
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
        self._live.start()

    def round(self, run: Run, record: Record) -> None:
        """The screen is refreshed four times a second, not for every round."""
        self.clock.tick()
        self._records.append(record)

    def note(self, text: str) -> None:
        """Above the table, when there is one."""
        if self._live is None:
            super().note(text)
        else:
            self._live.console.print(f"note: {printable(text, 500)}", markup=False, highlight=False, soft_wrap=True)

    def end(self, run: Run, summary: Summary) -> None:
        """Leave the table as it is and say how it ended."""
        if self._live is None:
            return
        self._live.refresh()
        self._live.stop()
        for line in (closing(run.config, summary), f"files in {printable(str(run.out))}"):
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        config, done = self._run.config, self._run.round
        lines = [Text(title(config), style="bold"), round_table(self._records[-ROWS:])]
        for name, key, log in (("accuracy", "accuracy", False), ("local rate", "local_lr", True)):
            lines.append(Text(f"{name:>11} {sparkline((r[key] for r in self._records), log=log)}", style="cyan"))
        if any(r["global_lr"] != config.global_lr for r in self._records):
            lines.append(
                Text(f"global rate {sparkline((r['global_lr'] for r in self._records), log=True)}", style="cyan")
            )
        left = f", {self.clock.left(config.rounds - done)} left" if self._records else ""
        lines.append(Text(f"round {done} of {config.rounds}, {self.clock.seconds:.2f} s a round{left}"))
        return Group(*lines)


def round_table(records: Sequence[Record]) -> Any:
    """The newest rounds as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("round", "accuracy", "loss", "global rate", "local rate", "seconds", ""):
        if heading:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(style="yellow", no_wrap=True, overflow="ellipsis")
    for record in records:
        seconds = sum(value for key, value in record.items() if key.startswith("seconds"))
        table.add_row(
            str(record["round"]),
            percent(record["accuracy"]),
            number(record["train_loss"]),
            number(record["global_lr"]),
            number(record["local_lr"]),
            f"{seconds:.2f}",
            Text(remarks(record).strip()),
        )
    return table
