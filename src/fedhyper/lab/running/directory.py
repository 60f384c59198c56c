"""A run directory on disk: one writer at a time, every file whole or absent, metrics that only grow.

config.toml  env.json  partition.json  summary.json      replaced atomically
metrics.jsonl                                            one line a round; a checkpoint knows its length
checkpoint/round-000012.ckpt                             the newest two
weights.safetensors                                      at the end
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

from fedhyper.errors import CheckpointRefused, UserError, printable
from fedhyper.lab.config.model import Config, dump, make_config
from fedhyper.lab.config.toml import read_toml
from fedhyper.storage import checkpoint
from fedhyper.storage.files import disk_errors, lock, read_json, replace, write_all

# The cure where a run cannot go on. sweep and demo have no --fresh, and their runs are runs, too.
ANEW = "delete the directory to start anew, as run --fresh does"
KEEP = 2  # checkpoints; should the newest be damaged, the one before it leads to the same bits
# What a run that was killed before its first file was complete may have left.
_OWN = frozenset({".lock", "checkpoint", "metrics.jsonl"})
_FILES = ("metrics.jsonl", "summary.json", "env.json", "partition.json", "weights.safetensors", "report.html")


class RunDirectory:
    """A directory that this process alone may write, for as long as it is open."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.metrics_bytes, self._digest = 0, hashlib.sha256()
        self._metrics = -1
        with disk_errors(self.path):
            self._new = not self.path.exists()
            _refuse_foreign(self.path)
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.path)
            self._remove_stale()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write again."""
        for descriptor in (self._metrics, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._metrics = self._lock = -1

    def abandon(self) -> None:
        """Close it; a directory that was made for a run which then was not started is taken back."""
        if self._new and not (self.path / "config.toml").exists():
            with contextlib.suppress(OSError):
                (self.path / ".lock").unlink()
                (self.path / "checkpoint").rmdir()
                self.path.rmdir()
        self.close()

    def _remove_stale(self) -> None:
        for left in (*self.path.glob(".*.tmp"), *(self.path / "checkpoint").glob(".*.tmp")):
            left.unlink(missing_ok=True)  # nobody else holds the lock, so its writer is dead

    def refuse_others(self) -> None:
        """Refuse, before ``discard``, where there are files that are not a run's."""
        with disk_errors(self.path):
            others = set(os.listdir(self.path)) - {*_FILES, *_OWN, "config.toml", "tensorboard"}
        if others := {name for name in others if not name.endswith(".tmp")}:
            said = printable(", ".join(sorted(others)[:3]))
            raise UserError(f"--fresh: {self.path} also holds {said}; move that, or choose another --out")

    def discard(self) -> None:
        """Delete the run that is here."""
        with disk_errors(self.path):
            for name in ("checkpoint", "tensorboard"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            # The config last: whatever ends this half-way, the directory still says whose it is.
            for name in (*_FILES, "config.toml"):
                (self.path / name).unlink(missing_ok=True)
            (self.path / "checkpoint").mkdir(exist_ok=True)

    # --- whole files -----------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> None:
        """Replace a file as a whole."""
        path = self.path / name
        with disk_errors(path):
            replace(path, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Replace a file by this value as JSON."""
        self.write(name, json.dumps(value, allow_nan=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The object in a file; None when it is absent or is not one."""
        return read_json(self.path / name)

    def config(self) -> Config | None:
        """The config this directory's run was started with; None when there is none."""
        return read_config(self.path)

    def write_config(self, config: Config) -> None:
        """Say what this directory's run is."""
        self.write("config.toml", dump(config))

    # --- metrics ---------------------------------------------------------------------------------------------

    def open_metrics(self, keep: int, sha256: str | None = None) -> list[dict[str, Any]]:
        """Make ``metrics.jsonl`` ready for more, cut to its first ``keep`` bytes; the records in them come back.

        ``sha256``: of these bytes, as the checkpoint knows it; None: it does not.
        """
        path = self.path / "metrics.jsonl"
        with disk_errors(path):
            self._metrics = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            size = os.fstat(self._metrics).st_size
            if size < keep:
                raise CheckpointRefused(
                    f"{path} was cut: it has {size:,} bytes, its checkpoint knows of {keep:,}; put it back, or {ANEW}"
                )
            os.ftruncate(self._metrics, keep)
            with os.fdopen(os.dup(self._metrics), "rb") as file:
                file.seek(0)
                content = file.read()
        self._digest = hashlib.sha256(content)
        if sha256 is not None and self._digest.hexdigest() != sha256:
            raise CheckpointRefused(f"{path} was changed since its checkpoint; put it back, or {ANEW}")
        lines, self.metrics_bytes = content.splitlines(), keep
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise CheckpointRefused(f"{path} is damaged: {error}; put it back, or {ANEW}") from error

    def recorded(self) -> int:
        """How many rounds were written down whole."""
        path = self.path / "metrics.jsonl"
        with disk_errors(path):
            return path.read_bytes().count(b"\n") if path.exists() else 0

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add a round. A line that cannot be written whole is taken back."""
        path, line = self.path / "metrics.jsonl", json.dumps(record, allow_nan=False).encode() + b"\n"
        with disk_errors(path):
            try:
                write_all(self._metrics, line)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._metrics, self.metrics_bytes)
                raise
        self._digest.update(line)
        self.metrics_bytes += len(line)

    # --- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, t: int, tensors: dict[str, Any], values: dict[str, Any]) -> None:
        """The state after round ``t``, then forget all but the newest. The metrics reach the disk first."""
        with disk_errors(self.path / "metrics.jsonl"):
            os.fsync(self._metrics)
        metrics = {"metrics_bytes": self.metrics_bytes, "metrics_sha256": self._digest.hexdigest()}
        checkpoint.save(self._checkpoint(t), tensors, values | {"round": t} | metrics)
        with disk_errors(self.path / "checkpoint"):
            for old in self.checkpoints()[:-KEEP]:
                old.unlink(missing_ok=True)

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any], list[str]] | None:
        """Tensors, values and what was passed over: the newest checkpoint that can be read. None if there is none."""
        found = self.checkpoints()
        refused: list[str] = []
        for path in reversed(found):
            try:
                tensors, values = checkpoint.load(path)
                _check_values(path, values)
            except CheckpointRefused as error:
                refused.append(str(error))
                continue
            for damaged in found[found.index(path) + 1 :]:  # else "the newest two" would keep it and drop a good one
                with disk_errors(damaged):
                    damaged.rename(damaged.with_suffix(".damaged"))
            return tensors, values, refused
        if refused:
            raise CheckpointRefused(f"{refused[0]}; {ANEW}")
        return None

    def checkpoints(self) -> list[Path]:
        """Every checkpoint, oldest first."""
        return sorted((self.path / "checkpoint").glob("round-*.ckpt"))

    def _checkpoint(self, t: int) -> Path:
        return self.path / "checkpoint" / f"round-{t:07d}.ckpt"


def _check_values(path: Path, values: dict[str, Any]) -> None:
    for key in ("round", "metrics_bytes"):
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise CheckpointRefused(f"{path}: not a checkpoint of a run ({key} is missing or no count)")


def read_config(path: Path) -> Config | None:
    """The config of the run in directory ``path``; None when there is none, refused when it cannot be read."""
    file = path / "config.toml"
    if not file.exists():
        return None
    try:
        return make_config(read_toml(file), str(file))
    except UserError as error:
        raise CheckpointRefused(f"{error}; put the config of this directory's run back, or {ANEW}") from error


def too_long(path: Path, done: int, rounds: int) -> UserError:
    """What to raise where fewer rounds are asked for than the run in ``path`` has done."""
    return UserError(
        f"{path} has {done} rounds already, more than rounds = {rounds}; ask for more, choose another --out, or {ANEW}"
    )


def holds_run(path: Path) -> bool:
    """Whether a run was started in directory ``path``, however it ended."""
    return (path / "config.toml").is_file() and ((path / "metrics.jsonl").exists() or (path / ".lock").exists())


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"{path} is a file; choose another --out")
    names = set(os.listdir(path))
    if names and "config.toml" not in names and not all(n in _OWN or n.endswith(".tmp") for n in names):
        raise UserError(f"{path} is not empty and holds no run; choose another --out")
    if "config.toml" in names and "metrics.jsonl" not in names and ".lock" not in names:
        raise UserError(f"{path} has a config.toml but holds no run; choose another --out")
