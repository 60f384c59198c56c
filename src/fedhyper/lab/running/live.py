"""A run on a terminal: a table that grows in place, with sparklines under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedhyper.errors import printable
from fedhyper.lab.running.display import Clock, Quiet
from fedhyper.lab.running.words import closing, duration, number, percent, remarks, sparkline, title

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from fedhyper.lab.running.progress import Record, Summary
    from fedhyper.lab.running.run import Run


ROWS = 12  # of the live table
HEADINGS = ("round", "accuracy", "loss", "global rate", "local rate", "seconds")
NEEDS = {"seconds": 76, "global rate": 65, "local rate": 50}  # columns of the screen, four of them for remarks


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

        width = self._live.console.width if self._live else 80
        lines: list[RenderableType] = [Text(title(self._run.config), style="bold")]
        if self._run.sim.trained_by:
            lines.append(Text(f"trains {self._run.sim.trained_by}", style="dim"))
        if self._records:
            lines += [round_table(self._records[-ROWS:], width), *self._sparklines()]
        lines.append(Text(self._where()))
        return Group(*lines)

    def _sparklines(self) -> Iterator[Text]:
        from rich.text import Text

        for name, key, log in (("accuracy", "accuracy", False), ("local rate", "local_lr", True)):
            yield Text(f"{name:>11} {sparkline((r[key] for r in self._records), log=log)}", style="cyan")
        if any(r["global_lr"] != self._run.config.global_lr for r in self._records):
            yield Text(f"global rate {sparkline((r['global_lr'] for r in self._records), log=True)}", style="cyan")

    def _where(self) -> str:
        """How far the run is; before the first round what it does, for finding the rate may take minutes."""
        done, rounds = self._run.round, self._run.config.rounds
        if self._records:
            return (
                f"round {done} of {rounds}, {self.clock.seconds:.2f} s a round, {self.clock.left(rounds - done)} left"
            )
        if done == rounds:
            return f"round {done} of {rounds}"
        doing = "finding the rate, " if self._run.sim.server_state.climbs else ""
        return f"round {done + 1} of {rounds}: {doing}{duration(self.clock.since)} so far"


def round_table(records: Sequence[Record], width: int = 80) -> Any:
    """The newest rounds as a rich table; on a narrow screen without the columns that would cut the others short."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    shown = [heading for heading in HEADINGS if width >= NEEDS.get(heading, 0)]
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(style="yellow", no_wrap=True, overflow="ellipsis")
    for record in records:
        seconds = sum(value for key, value in record.items() if key.startswith("seconds"))
        cells = {
            "round": str(record["round"]),
            "accuracy": percent(record["accuracy"]),
            "loss": number(record["train_loss"]),
            "global rate": number(record["global_lr"]),
            "local rate": number(record["local_lr"]),
            "seconds": f"{seconds:.2f}",
        }
        table.add_row(*(cells[heading] for heading in shown), Text(remarks(record).strip()))
    return table
