"""Run a grid, cell by cell, several at a time; whatever ends the sweep, the same command continues it.

A cell is a run directory like any other, ``cells/<name>/``. Finished and diverged cells are skipped, broken ones
continued, so the only state of a sweep is that of its cells.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from fedhyper.errors import CheckpointRefused, UserError
from fedhyper.lab.config.identity import differences
from fedhyper.lab.config.toml import dump_toml
from fedhyper.lab.running.build import cores
from fedhyper.lab.running.directory import ANEW, read_config, too_long
from fedhyper.lab.running.interrupt import Interrupted, Signals
from fedhyper.lab.sweep.grid import Cell
from fedhyper.lab.sweep.packing import longest_first
from fedhyper.storage.files import disk_errors, lock, read_json, replace

ATTEMPTS = 2  # a cell whose process died is continued once; twice is no accident
GRACE = 6.0  # seconds for the cells to write their checkpoints


@dataclass
class Outcome:
    """How a cell ended: ``finished``, ``diverged`` or ``failed``; ``skipped`` when it had ended before."""

    cell: Cell
    status: str
    accuracy: float | None = None
    message: str = ""
    exit_code: int = 0
    skipped: bool = False


class SweepListener(Protocol):
    """What is told about a sweep while it goes on."""

    def begin(self, total: int, skipped: int, jobs: int) -> None:
        """``skipped`` of ``total`` cells are there already."""

    def progress(self, running: dict[str, tuple[int, int, float | None]]) -> None:
        """Each running cell: its round, its rounds, its last accuracy."""

    def ended(self, outcome: Outcome) -> None:
        """A cell of this sweep has ended, and how."""

    def end(self, outcomes: Sequence[Outcome]) -> None:
        """All cells, or all that could be."""


class _Worker:
    """A process that runs one cell after the other."""

    def __init__(self) -> None:
        # Its own session: Ctrl-C goes to the sweep, which then asks every cell to stop.
        command = [sys.executable, "-m", "fedhyper.lab.sweep.worker"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self.cell: Cell | None = None
        self._rest = b""

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, cell: Cell, order: dict[str, Any]) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        self.cell = cell
        with contextlib.suppress(BrokenPipeError):  # it died while it was idle; its end of file is heard next
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def messages(self) -> list[dict[str, Any]] | None:
        """What it has said since; None when it is dead."""
        # Not readline: it would keep further lines in a buffer that select knows nothing of.
        new = os.read(self.out.fileno(), 1 << 16)
        if not new:
            return None
        *lines, self._rest = (self._rest + new).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, deadline: float) -> None:
        """No more cells; killed if it has not ended by then."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # an order it never read
            self.process.stdin.close()
        try:
            self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.out.close()


def run_sweep(
    cells: Sequence[Cell],
    out: Path,
    *,
    description: dict[str, Any],
    jobs: int | None = None,
    device: str = "cpu",
    track: Sequence[str] = (),
    display: SweepListener,
) -> list[Outcome]:
    """Run ``cells`` in ``out``; how each ended comes back, in their order.

    ``jobs`` cells run at a time (None: as many as there are cores), each with its share of the cores;
    the longest start first; each is followed by the trackers named in ``track``.
    """
    with disk_errors(out):
        _refuse_foreign(out)
        (out / "cells").mkdir(parents=True, exist_ok=True)
        held = lock(out)
    with Signals() as signals, open(held, "rb"):
        outcomes = {cell.name: done for cell in cells if (done := ended_before(cell, out)) is not None}
        with disk_errors(
            out
        ):  # not before: a grid that is refused must not replace what is said of the one that is here
            replace(out / "sweep.toml", dump_toml(description).encode())
        pending = deque(longest_first(cell for cell in cells if cell.name not in outcomes))
        jobs = max(1, min(jobs or cores(), len(pending)))
        display.begin(len(cells), len(outcomes), jobs)
        pool = _Pool(out, jobs, device, track, display, signals)
        try:
            for outcome in pool.run(pending):
                outcomes[outcome.cell.name] = outcome
        finally:
            pool.stop()
            ordered = [outcomes[cell.name] for cell in cells if cell.name in outcomes]
            display.end(ordered)
        failures = {one.cell.name: one.message for one in ordered if one.status not in ("finished", "diverged")}
        with disk_errors(out):
            replace(out / "failures.json", (json.dumps(failures, indent=1) + "\n").encode())
        if signals.received:  # too late for this sweep, but whoever starts several must not start the next one
            raise interrupted(signals.received)
        return ordered


def ended_before(cell: Cell, out: Path) -> Outcome | None:
    """How the cell ended in an earlier sweep; None when there is something left to do."""
    path = out / "cells" / cell.name
    known, summary = read_config(path), read_json(path / "summary.json")
    if known is None:
        return None
    differing = differences(cell.config, known)
    if differing:
        raise CheckpointRefused(
            f"{path} holds a run of another config: {', '.join(differing)}; choose another --out, or {ANEW}"
        )
    if (
        summary is None
        or summary.get("status") not in ("finished", "diverged")
        or known.values() != cell.config.values()
    ):
        return None
    return Outcome(cell, summary["status"], summary.get("final_accuracy"), skipped=True)


def refuse_shorter(cells: Sequence[Cell], out: Path) -> None:
    """Refuse a grid of fewer rounds than its cells have done already; each of them would fail."""
    for cell in cells:
        done = (read_json(out / "cells" / cell.name / "summary.json") or {}).get("rounds")
        if isinstance(done, int) and done > cell.config.rounds:
            raise too_long(out / "cells" / cell.name, done, cell.config.rounds)


def interrupted(number: int) -> Interrupted:
    """What to raise when signal ``number`` ended a sweep."""
    return Interrupted(number, "interrupted; the same command continues the sweep")


def _refuse_foreign(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / "sweep.toml").is_file() and not (out / "cells").is_dir():
        raise UserError(f"{out} is not empty and holds no sweep; choose another --out")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")


class _Pool:
    def __init__(
        self, out: Path, jobs: int, device: str, track: Sequence[str], display: SweepListener, signals: Signals
    ) -> None:
        self.out, self.jobs, self.display, self.signals = out, jobs, display, signals
        self.order = {"workers": max(1, cores() // jobs), "device": device, "track": list(track)}
        self.selector = selectors.DefaultSelector()
        self.workers: list[_Worker] = []
        self.attempts: Counter[str] = Counter()
        self.running: dict[str, tuple[int, int, float | None]] = {}

    def run(self, pending: deque[Cell]) -> Iterator[Outcome]:
        """Outcomes, as they come."""
        while pending or self.running:
            if self.signals.received:
                raise self._interrupted()
            while pending and len(self.running) < self.jobs:
                self._assign(pending.popleft())
            for key, _ in self.selector.select(timeout=0.5):
                yield from self._hear(key.data, pending)
            self.display.progress(self.running)

    def _assign(self, cell: Cell) -> None:
        idle = next((worker for worker in self.workers if worker.cell is None), None)
        if idle is None:
            idle = _Worker()
            self.workers.append(idle)
            self.selector.register(idle.out, selectors.EVENT_READ, idle)
        self.attempts[cell.name] += 1
        self.running[cell.name] = (0, cell.config.rounds, None)
        path = str(self.out / "cells" / cell.name)
        idle.send(cell, {"config": cell.config.values(), "out": path, **self.order})

    def _hear(self, worker: _Worker, pending: deque[Cell]) -> Iterator[Outcome]:
        messages = worker.messages()
        if messages is None:
            yield from self._bury(worker, pending)
            return
        for message in messages:
            cell = worker.cell
            assert cell is not None
            if "done" not in message:
                self.running[cell.name] = (message["round"], cell.config.rounds, message["accuracy"])
                continue
            worker.cell = None
            del self.running[cell.name]
            outcome = Outcome(
                cell, message["done"], message.get("accuracy"), message.get("message", ""), message["exit_code"]
            )
            self.display.ended(outcome)
            yield outcome

    def _bury(self, worker: _Worker, pending: deque[Cell]) -> Iterator[Outcome]:
        self.selector.unregister(worker.out)
        self.workers.remove(worker)
        worker.close(time.monotonic() + GRACE)
        if worker.cell is None:
            return
        del self.running[worker.cell.name]
        if self.attempts[worker.cell.name] < ATTEMPTS:
            pending.appendleft(worker.cell)
            return
        status = worker.process.returncode
        outcome = Outcome(worker.cell, "failed", message=f"its process died (status {status})", exit_code=1)
        self.display.ended(outcome)
        yield outcome

    def _interrupted(self) -> Interrupted:
        for worker in self.workers:
            worker.process.terminate()
        return interrupted(self.signals.received)

    def stop(self) -> None:
        """End every process: politely, then not."""
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            worker.close(deadline)
        self.workers = []
        self.selector.close()
