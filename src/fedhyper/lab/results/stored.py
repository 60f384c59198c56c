"""Run directories, read back: whatever was written is used, whatever is missing or broken is named, nothing is trusted.

A run may have been killed between two bytes, may still be running, or may not be a run at all. Only "there is
nothing here to read" is an error; everything else becomes a line in :attr:`StoredRun.problems`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhyper.errors import StorageError, UserError

# Deep enough for runs/project/sweep/cells/name, shallow enough that "report /" ends.
_MAX_DEPTH = 8
_NUMBERS = frozenset(
    (
        *("round", "global_lr", "local_lr", "local_lr_min", "local_lr_max", "hypergrad", "cosine", "update_norm"),
        *("train_loss", "test_loss", "accuracy", "seconds_train", "seconds_aggregate", "seconds_evaluate"),
        *("bytes_up", "bytes_down", "clients_used", "clients_rejected"),
    )
)
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
        """The last measured test accuracy, a fraction; None when none was measured."""
        # The summary of a killed run is older than its last round, so the rounds have the word.
        measured = (r["accuracy"] for r in reversed(self.rounds) if r.get("accuracy") is not None)
        return next(measured, number((self.summary or {}).get("final_accuracy")))

    @property
    def target_accuracy(self) -> float | None:
        """The accuracy that rounds-to-target counts to, a fraction; None when none was set."""
        return number((self.summary or {}).get("target_accuracy")) or number(self.config.get("target_accuracy")) or None

    def to_target(self) -> tuple[int, float] | None:
        """Round and seconds at which the target was first reached; None when there is no target or it was not."""
        target, seconds = self.target_accuracy, 0.0
        for record in self.rounds if target is not None else ():
            seconds += seconds_of(record)
            if record.get("accuracy") is not None and record["accuracy"] >= target:
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


def number(value: object) -> float | None:
    """``value`` as a finite float; None for anything else, booleans and numerals in strings included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def seconds_of(record: dict[str, Any]) -> float:
    """Seconds one round took: training, aggregation and evaluation."""
    return sum(record.get(f"seconds_{part}") or 0.0 for part in ("train", "aggregate", "evaluate"))


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
    return "method" in _toml(config, [])


def _name(path: Path, root: Path) -> str:
    parts = [part for part in path.relative_to(root).parts if part != "cells"]
    return _clean("/".join(parts) or path.resolve().name)  # type: ignore[no-any-return]


def _load(path: Path, name: str) -> StoredRun:
    problems: list[str] = []
    config = _toml(path / "config.toml", problems)
    rounds = _rounds(path / "metrics.jsonl", problems)
    summary = _object(path / "summary.json", problems)
    env = _object(path / "env.json", problems)
    partition = _object(path / "partition.json", [])
    if summary is None:
        problems.append("summary.json is missing: the run was killed or is still going")
    return StoredRun(name, path, config, rounds, summary, env, partition, problems)


def _text(path: Path, problems: list[str]) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def _toml(path: Path, problems: list[str]) -> dict[str, Any]:
    text = _text(path, problems)
    if text is None:
        problems.append(f"{path.name} is missing")
        return {}
    try:
        return _clean(tomllib.loads(text))  # type: ignore[no-any-return]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        problems.append(f"{path.name} is not TOML: {_first_line(error)}")
        return {}


def _object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    text = _text(path, problems)
    if text is None:
        return None
    try:
        value = _clean(json.loads(text))
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} is not JSON: {_first_line(error)}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds no object")
        return None
    return value


def _rounds(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    text = _text(path, problems)
    if text is None:
        problems.append(f"{path.name} is missing: no round was recorded")
        return []
    whole = text.endswith("\n")
    lines = text.split("\n")
    by_round: dict[int, dict[str, Any]] = {}
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _record(json.loads(line))
        except (ValueError, RecursionError) as error:
            last = place == len(lines) and not whole
            what = "was cut off while it was written" if last else f"is no record: {_first_line(error)}"
            problems.append(f"{path.name} line {place} {what}")
            continue
        by_round[record["round"]] = record  # a resumed run may write a round again; the last word counts
    if not by_round and not problems:
        problems.append(f"{path.name} is empty: no round was recorded")
    return [by_round[t] for t in sorted(by_round)]


def _record(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    record: dict[str, Any] = _clean(value)
    for key in _NUMBERS & record.keys():
        record[key] = number(record[key])
    t = record.get("round")
    if t is None or t != int(t) or t < 0:
        raise ValueError("no round number")
    record["round"] = int(t)
    reasons = record.get("reject_reasons")
    counts = reasons.items() if isinstance(reasons, dict) else ()
    record["reject_reasons"] = {k: int(n) for k, v in counts if (n := number(v)) is not None and n > 0}
    record["rollback"] = record.get("rollback") is True
    clients = record.get("client_accuracy")
    values = [number(v) for v in clients] if isinstance(clients, list) else []
    record["client_accuracy"] = [v for v in values if v is not None]
    return record


def _clean(value: Any) -> Any:
    """Strings that any encoder accepts: JSON may hold half a surrogate pair, file names arbitrary bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
