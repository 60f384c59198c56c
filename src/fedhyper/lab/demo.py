"""The main job in half a minute, without a network: FedAvg from a rate 100 times too small, FedHyper from none."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedhyper.errors import UserError
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.outputs import say_report
from fedhyper.lab.running.directory import holds_run
from fedhyper.lab.running.interrupt import AbandonRound, Signals
from fedhyper.lab.running.progress import Record
from fedhyper.lab.running.run import Run
from fedhyper.lab.running.words import number, percent, sparkline
from fedhyper.storage.files import disk_errors, read_json

GOOD = 1.0  # local_lr; measured: 0.001 to 3 with FedAvg on this task, 1 and 3 come out best
START = GOOD / 100
SETTINGS: dict[str, Any] = {
    "task": "digits",
    "rounds": 60,
    "clients": 30,
    "clients_per_round": 10,
    "batch_size": 10,
    "eval_every": 1,
    "target_accuracy": 0.9,
}
RUNS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg", "local_lr": START},
    "FedHyper": {"method": "fedhyper"},
    "FedAvg, tuned": {"method": "fedavg", "local_lr": GOOD},
}
ROWS = 15
SPARK = 8  # bars; six of them fit into 80 columns, and a column that does not fit loses its newest end
EVERY = 10  # rounds between plain lines


def run_demo(out: Path | None, *, quiet: bool = False, report: bool = True) -> Path:
    """Run it into ``out`` (``runs/demo`` or the next free name) and say what happened; the directory comes back.

    One that was interrupted goes on.
    """
    directory = out or _free(Path("runs") / "demo")
    _refuse_foreign(directory)
    configs = {name: make_config(SETTINGS | settings, "demo") for name, settings in RUNS.items()}
    if not quiet:
        print(
            f"Handwritten digits, 30 clients, 10 of them a round, each with its own mix of digits.\n"
            f"A good local rate here is about {GOOD:g}. FedAvg starts from {START:g}, 100 times too small; FedHyper is "
            "given none and finds one;\nthe third run is FedAvg with the good rate, for comparison.\n"
        )
    records = _run_all(configs, directory, _Live(configs) if sys.stdout.isatty() and not quiet else _Lines(quiet))
    if not quiet:
        _print_end(configs, records)
    if report:
        say_report(directory, quiet=quiet)
    if not quiet:
        print(
            "\nNext, with more data:\n"
            "  fedhyper data fetch fmnist\n"
            "  fedhyper run fmnist\n"
            "  fedhyper sweep fmnist method=fedavg local_lr=0.0001,0.01,0.1 seed=0..2"
        )
    return directory


def _free(path: Path) -> Path:
    """``runs/demo``, or ``runs/demo-2`` when there has been one before that was not interrupted."""
    count = 1
    while (candidate := path if count == 1 else path.with_name(f"{path.name}-{count}")).exists():
        if any((read_json(run / "summary.json") or {}).get("status") == "interrupted" for run in _places(candidate)):
            break
        count += 1
    return candidate


def _places(directory: Path) -> list[Path]:
    return [directory / _slug(name) for name in RUNS]


def _refuse_foreign(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file; choose another --out")
    with disk_errors(directory):
        if directory.exists() and any(directory.iterdir()) and not any(map(holds_run, _places(directory))):
            raise UserError(f"{directory} is not empty and holds no demo; choose another --out")


def _run_all(configs: dict[str, Config], directory: Path, screen: _Lines) -> dict[str, list[Record]]:
    """All runs together, a round of each in turn."""
    runs: dict[str, Run] = {}
    records: dict[str, list[Record]] = {}
    with contextlib.ExitStack() as stack:
        for name, config in configs.items():
            place = directory / _slug(name)
            runs[name] = stack.enter_context(Run(config, place, resume=holds_run(place)))
            records[name] = [json.loads(line) for line in (place / "metrics.jsonl").read_bytes().splitlines()]
        with Signals() as signals, screen.shown(records):
            for t in range(min(map(len, records.values())), SETTINGS["rounds"]):
                for name, run in runs.items():
                    if len(records[name]) > t:  # the interruption came between two runs
                        continue
                    with contextlib.suppress(AbandonRound):  # then a signal was received
                        records[name].append(run.step(signals))
                    if signals.received:
                        stopped = [one.interrupt(signals.received) for one in runs.values()]
                        raise stopped[0]
                screen.round(records)
        for run in runs.values():
            run.finish()
    return records


def _slug(name: str) -> str:
    return name.lower().replace(", ", "-")


class _Lines:
    """A line every tenth round, for logs; none if ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @contextlib.contextmanager
    def shown(self, records: dict[str, list[Record]]) -> Iterator[None]:
        """Lines need no screen of their own: a block without effect."""
        yield

    def round(self, records: dict[str, list[Record]]) -> None:
        """A line on the newest round of every run, every tenth round."""
        newest = {name: rows[-1] for name, rows in records.items()}
        t = next(iter(newest.values()))["round"]
        if not self.quiet and (t % EVERY == 0 or t == 1):
            words = [f"{name} {percent(r['accuracy'])} (rate {number(r['local_lr'])})" for name, r in newest.items()]
            print(f"round {t:>3}  " + "   ".join(words), flush=True)


class _Live(_Lines):
    """The newest rounds of all runs side by side."""

    def __init__(self, configs: dict[str, Config]) -> None:
        super().__init__(quiet=False)
        self.configs = configs

    @contextlib.contextmanager
    def shown(self, records: dict[str, list[Record]]) -> Iterator[None]:
        """The live table is on the screen for as long as the block runs."""
        from rich.live import Live

        with Live(get_renderable=lambda: self._render(records), refresh_per_second=8):
            yield

    def round(self, records: dict[str, list[Record]]) -> None:
        """Nothing to do for a round: the table is drawn eight times a second from ``records``."""

    def _render(self, records: dict[str, list[Record]]) -> Any:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2), pad_edge=False)
        table.add_column("round", justify="right")
        for name in records:
            table.add_column(name, justify="right")
            table.add_column("local rate", justify="right", style="cyan")
        done = min(len(rows) for rows in records.values())
        for t in range(max(0, done - ROWS), done):
            pairs = [(percent(rows[t]["accuracy"]), number(rows[t]["local_lr"])) for rows in records.values()]
            table.add_row(str(t + 1), *(cell for pair in pairs for cell in pair))
        lines: list[str] = []
        for rows in records.values():
            lines.append(sparkline((r["accuracy"] for r in rows), SPARK))
            lines.append(sparkline((r["local_lr"] for r in rows), SPARK, log=True))
        table.add_row("", *lines, style="bold")
        return table


def _print_end(configs: dict[str, Config], records: dict[str, list[Record]]) -> None:
    from rich.console import Console
    from rich.table import Table

    target = SETTINGS["target_accuracy"]
    table = Table(box=None, padding=(0, 2), pad_edge=False, title_justify="left")
    for heading in ("", "local rate", "ended at", "accuracy", f"rounds to {percent(target)}"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, rows in records.items():
        reached = next((str(r["round"]) for r in rows if r["accuracy"] >= target), "not reached")
        # the clients of round 1 try rates out; what most of them found best is used from round 2 on
        config = configs[name]
        start = f"found {number(rows[1]['local_lr'])}" if config.finds_rates else f"given {number(config.local_lr)}"
        table.add_row(name, start, number(rows[-1]["local_lr"]), percent(rows[-1]["accuracy"]), reached)
    print()
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print()
