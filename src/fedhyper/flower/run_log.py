"""What is written down about a Flower run: one record a round, the simulator's, in memory and in a run directory.

config.toml  env.json  summary.json      replaced as a whole; ``fedhyper report DIR`` shows them like any other run's
metrics.jsonl                            one line a round; the newest is written again when it has been evaluated
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import flwr
import numpy as np
from flwr.app import ArrayRecord, Message

import fedhyper
from fedhyper.errors import StorageError, TrainingStopped, UserError
from fedhyper.flower.losses import first_number
from fedhyper.flower.replies import Refusal
from fedhyper.flower.wire import PREFIX
from fedhyper.loop import Decision
from fedhyper.storage.checkpoint import replace
from fedhyper.storage.record import RoundRecord, finite

# The names that Flower's own examples use, in the order in which they are believed
ACCURACY = ("accuracy", "eval_accuracy", "eval_acc", "test_accuracy", "test_acc", "acc")
TEST_LOSS = ("loss", "eval_loss", "test_loss", "eval-loss")

SHOWN = ("global_lr", "local_lr", "clients_used", "clients_rejected", "rollback")

Status = Literal["running", "finished", "diverged", "interrupted"]


class RunLog:
    """``history`` is the record of every round; with a directory it is on disk, too."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.history: list[RoundRecord] = []
        self._bytes_up = self._bytes_down = 0
        self._sent = self._answered = self._done = time.perf_counter()
        self._newest = 0  # where the newest line begins in metrics.jsonl

    # --- a run begins and ends ---------------------------------------------------------------------------------------

    def begin(self, settings: Mapping[str, Any], history: Sequence[RoundRecord], *, resume: bool) -> None:
        """A new run, or one that goes on after ``history``; a directory that holds another run is refused."""
        self.history = list(history)
        if self.directory is None:
            return
        metrics = self.directory / "metrics.jsonl"
        if metrics.exists() and not resume:
            raise UserError(f"run_dir {self.directory} holds a run; choose another, or go on with start(resume=True)")
        # a round that was evaluated after it had been saved is whole only here
        known = {record["round"]: record for record in _read(metrics)}
        self.history = [known.get(record["round"], record) for record in self.history]
        with _storage(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            lines = [_line(record) for record in self.history]
            self._newest = sum(map(len, lines[:-1]))
            replace(metrics, tuple(lines))
            config = "".join(f"{key} = {json.dumps(v, ensure_ascii=False)}\n" for key, v in settings.items())
            replace(self.directory / "config.toml", (config.encode(),))
            if not (self.directory / "env.json").exists():
                replace(self.directory / "env.json", (_line(_environment()),))
        self.summarize("running", None)

    def summarize(self, status: Status, kept: ArrayRecord | None) -> None:
        """Say how the run stands, and what the weights are that it gives back."""
        if self.directory is None:
            return
        measured = [record for record in self.history if record["accuracy"] is not None]
        digest = hashlib.sha256()
        for array in (kept or {}).values():
            digest.update(array.data)
        summary = {
            "status": status,
            "rounds": self.history[-1]["round"] if self.history else 0,
            "final_accuracy": measured[-1]["accuracy"] if measured else None,
            "best_accuracy": max((record["accuracy"] or 0.0 for record in measured), default=None),
            "final_loss": measured[-1]["test_loss"] if measured else None,
            "bytes_up": sum(record["bytes_up"] or 0 for record in self.history),
            "bytes_down": sum(record["bytes_down"] or 0 for record in self.history),
            "weights_sha256": digest.hexdigest() if kept else "",
        }
        with _storage(self.directory):
            replace(self.directory / "summary.json", (_line(summary),))

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Say on disk what became of a run that does not come to its end."""
        try:
            yield
        except BaseException as error:
            self.summarize("diverged" if isinstance(error, TrainingStopped) else "interrupted", None)
            raise

    # --- a round -----------------------------------------------------------------------------------------------------

    def sent(self, messages: Iterable[Message]) -> None:
        """The round's messages are about to go out."""
        self._bytes_down, self._sent = _array_bytes(messages), time.perf_counter()

    def answered(self, messages: Iterable[Message]) -> None:
        """All that came back is here."""
        self._bytes_up, self._answered = _array_bytes(messages), time.perf_counter()

    def add(
        self,
        server_round: int,
        decision: Decision,
        *,
        local_lr: float,
        used: int,
        rejected: Sequence[Refusal],
        **measured: float | None,
    ) -> RoundRecord:
        """The round's record. ``measured``: hypergrad, cosine, update_norm, train_loss."""
        self._done = time.perf_counter()
        record = finite(
            {
                "round": server_round,
                "global_lr": decision.global_lr,
                "local_lr": local_lr,
                "local_lr_min": local_lr,
                "local_lr_max": local_lr,
                **measured,
                "test_loss": None,
                "accuracy": None,
                "seconds_train": self._answered - self._sent,
                "seconds_aggregate": self._done - self._answered,
                "seconds_evaluate": None,
                "bytes_up": self._bytes_up,
                "bytes_down": self._bytes_down,
                "clients_used": used,
                "clients_rejected": len(rejected),
                "reject_reasons": dict(sorted(Counter(refusal.reason for refusal in rejected).items())),
                "rollback": decision.action == "rollback",
            }
        )
        self.history.append(record)
        self._write(append=True)
        return record

    def metrics(self, record: RoundRecord) -> dict[str, int | float]:
        """What Flower logs and keeps of a round, beside the inner strategy's own metrics."""
        shown = {key: record[key] for key in SHOWN}  # type: ignore[literal-required]
        return {f"{PREFIX}{key.replace('_', '-')}": value + 0 for key, value in shown.items() if value is not None}

    def evaluated(self, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """The weights after this round were evaluated, on the server or by the clients; the last word counts."""
        if metrics is None or not self.history or self.history[-1]["round"] != server_round:
            return
        found = {"accuracy": first_number(metrics, ACCURACY), "test_loss": first_number(metrics, TEST_LOSS)}
        seconds = {"seconds_evaluate": time.perf_counter() - self._done}
        known = {key: value for key, value in found.items() if value is not None}
        if known:
            self.history[-1] = finite({**self.history[-1], **seconds, **known})
            self._write(append=False)

    def _write(self, *, append: bool) -> None:
        if self.directory is None or not self.directory.exists():
            return
        path = self.directory / "metrics.jsonl"
        with _storage(path), open(path, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            self._newest = size if append else self._newest
            file.seek(self._newest)
            file.write(_line(self.history[-1]))
            file.truncate()


def _line(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _read(path: Path) -> Iterator[RoundRecord]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # cut off while it was written
            continue
        if isinstance(record, dict) and "round" in record:
            yield record  # type: ignore[misc]


def _array_bytes(messages: Iterable[Message]) -> int:
    contents = [message.content for message in messages if message.has_content()]
    return sum(
        len(a.data) for content in contents for record in content.array_records.values() for a in record.values()
    )


def _environment() -> dict[str, Any]:
    return {
        "fedhyper": fedhyper.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "flwr": flwr.__version__,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"{path}: {reason}; free space, check the permissions, or choose another run_dir") from error
