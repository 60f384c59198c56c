"""The files of a run directory, for a host that is not the simulator's own.

config.toml  env.json  summary.json      replaced as a whole; ``fedhyper report DIR`` shows them like any other run's
metrics.jsonl                            one line a round; the newest can be written again, when it has been evaluated
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fedhyper
from fedhyper.storage.files import disk_errors, replace
from fedhyper.storage.record import RoundRecord


class RunFiles:
    """A directory for one run. What the operating system refuses is raised as StorageError, one line."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metrics = directory / "metrics.jsonl"
        self._newest = 0  # where the newest line begins

    @property
    def hold_a_run(self) -> bool:
        """Whether a run has been here."""
        return self._metrics.exists()

    def rounds(self) -> Iterator[RoundRecord]:
        """The records in ``metrics.jsonl``; a line that was cut off while it was written is passed over."""
        for line in self._metrics.read_bytes().splitlines() if self.hold_a_run else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "round" in record:
                yield record  # type: ignore[misc]

    def begin(self, config: Mapping[str, Any], versions: Mapping[str, str], history: Sequence[RoundRecord]) -> None:
        """Say what run this is, and write down the rounds it has done so far."""
        lines = [_line(record) for record in history]
        self._newest = sum(map(len, lines[:-1]))
        toml = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in config.items())
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            replace(self._metrics, *lines)
            replace(self.directory / "config.toml", toml.encode())
            if not (self.directory / "env.json").exists():
                replace(self.directory / "env.json", _line(_environment(versions)))

    def write(self, record: RoundRecord, *, again: bool) -> None:
        """Add a round, or write the newest one ``again``."""
        with disk_errors(self._metrics), open(self._metrics, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            self._newest = self._newest if again else size
            file.seek(self._newest)
            file.write(_line(record))
            file.truncate()

    def summarize(self, status: str, history: Sequence[RoundRecord], weights_sha256: str) -> None:
        """``summary.json``: how the run stands, and what its rounds add up to."""
        measured = [record for record in history if record["accuracy"] is not None]
        summary = {
            "status": status,
            "rounds": history[-1]["round"] if history else 0,
            "final_accuracy": measured[-1]["accuracy"] if measured else None,
            "best_accuracy": max((record["accuracy"] or 0.0 for record in measured), default=None),
            "final_loss": measured[-1]["test_loss"] if measured else None,
            "bytes_up": sum(record["bytes_up"] or 0 for record in history),
            "bytes_down": sum(record["bytes_down"] or 0 for record in history),
            "weights_sha256": weights_sha256,
        }
        with disk_errors(self.directory):
            replace(self.directory / "summary.json", _line(summary))


def _line(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def _environment(versions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "fedhyper": fedhyper.__version__,
        "python": platform.python_version(),
        **versions,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
