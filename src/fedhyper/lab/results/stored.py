"""Run directories, read back: whatever was written is used, whatever is missing or broken is named, nothing is trusted.

A run may have been killed between two bytes, may still be running, or may not be a run at all. Only "there is
nothing here to read" is an error; everything else becomes a line in :attr:`StoredRun.problems`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhyper.errors import StorageError, UserError
from fedhyper.lab.config.identity import LATER
from fedhyper.lab.results.metrics import final_accuracy, number, seconds_of
from fedhyper.lab.results.reading import clean, read_object, read_rounds, read_table

# Deep enough for runs/project/sweep/cells/name, shallow enough that "report /" ends.
_MAX_DEPTH = 8
_NOT_RUNNING = frozenset({"finished", "diverged"})


@dataclass(frozen=True)
class StoredRun:
    """One run directory. ``problems`` says, one line each, what could not be read."""

    name: str
    path: Path
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any] | None = None
    env: dict[str, Any] | None = None
    partition: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The method's name, or ``?`` when the config does not say."""
        return str(self.config.get("method", "?"))

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``interrupted``, ``running``; ``unfinished`` when nobody wrote a summary."""
        status = (self.summary or {}).get("status")
        return status if isinstance(status, str) else "unfinished"

    @property
    def ended(self) -> bool:
        """Whether training came to its own end (finished or diverged), so that its last accuracy is a result."""
        return self.status in _NOT_RUNNING

    @property
    def final_accuracy(self) -> float | None:
        """``metrics.final_accuracy`` of its rounds; what its summary says when no round can be read."""
        # The summary of a killed run is older than its last round, so the rounds have the word.
        final = final_accuracy(self.rounds)
        return number((self.summary or {}).get("final_accuracy")) if final is None else final

    @property
    def weights(self) -> str:
        """The SHA-256 of the weights it ended with; empty when its summary does not say."""
        digest = (self.summary or {}).get("weights_sha256")
        return digest if isinstance(digest, str) else ""

    @property
    def planned(self) -> float:
        """The number of rounds its config asks for; of those recorded when it does not say."""
        return number(self.config.get("rounds")) or (self.rounds[-1]["round"] if self.rounds else 0)

    @property
    def target_accuracy(self) -> float | None:
        """The accuracy that rounds-to-target counts to, a fraction; None when none was set."""
        return number((self.summary or {}).get("target_accuracy")) or number(self.config.get("target_accuracy")) or None

    def to_target(self) -> tuple[int, float] | None:
        """Round and seconds at which the target was first reached; None when there is no target or it was not."""
        target, seconds = self.target_accuracy, 0.0
        for record in self.rounds if target is not None else ():
            seconds += seconds_of(record)
            judged = record.get("validation_accuracy", record.get("accuracy"))  # as the run itself judged
            if judged is not None and judged >= target:
                return int(record["round"]), seconds
        return None


def load_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """Every run under ``paths``: run directories, sweeps, directories of either, in the order of their paths.

    A path that does not exist is an error; one without runs is passed over when another has some, so that
    ``runs/*`` may hold a stray file.
    """
    found: dict[Path, str] = {}
    for root in map(Path, paths):
        if not root.exists():
            raise UserError(f"no such path: {root}; pass a run directory, a sweep, or a directory of runs")
        inside = list(_find(root, 0))
        for path in inside:
            name = _name(path, root)
            if name in found.values():
                name = f"{root.resolve().parent.name}/{root.resolve().name}/{name}"
            found.setdefault(path.resolve(), name)
    if not found:
        shown = ", ".join(str(path) for path in paths) or "(nothing)"
        raise UserError(
            f"no runs in {shown}; pass a directory that holds config.toml and metrics.jsonl, as `fedhyper run` writes"
        )
    return [_load(path, name) for path, name in found.items()]


def _find(path: Path, depth: int) -> Iterator[Path]:
    if not path.is_dir() or depth > _MAX_DEPTH:
        return
    if _is_run(path):
        yield path
        return
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    for entry in entries:
        # A link may point back up; a run that is only linked can be named itself.
        if not entry.name.startswith(".") and not entry.is_symlink():
            yield from _find(entry, depth + 1)


def _is_run(path: Path) -> bool:
    if (path / "cells").is_dir():
        return False
    if (path / "metrics.jsonl").is_file():
        return True
    # Many programs keep a config.toml; ours names a method, or stands beside another file of a run.
    config = path / "config.toml"
    if not config.is_file():
        return False
    if any((path / other).exists() for other in ("summary.json", "env.json", "partition.json", "checkpoint")):
        return True
    return "method" in read_table(config, [])


def _name(path: Path, root: Path) -> str:
    parts = [part for part in path.relative_to(root).parts if part != "cells"]
    return clean("/".join(parts) or path.resolve().name)  # type: ignore[no-any-return]


def _load(path: Path, name: str) -> StoredRun:
    problems: list[str] = []
    config = read_table(path / "config.toml", problems)
    config = LATER | config if config else config
    rounds = read_rounds(path / "metrics.jsonl", problems)
    summary = read_object(path / "summary.json", problems)
    env = read_object(path / "env.json", problems)
    partition = read_object(path / "partition.json", problems)
    if summary is None:
        problems.append("summary.json is missing: the run was killed or is still going")
    return StoredRun(name, path, config, rounds, summary, env, partition, problems)
