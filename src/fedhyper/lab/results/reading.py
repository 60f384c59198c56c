"""The files of a run directory, read without trust: what is missing or broken becomes a line in ``problems``."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedhyper.lab.results.metrics import number

_PLAIN = frozenset((float, int, bool, type(None)))
_NUMBERS = frozenset(
    (
        *("round", "global_lr", "local_lr", "local_lr_min", "local_lr_max", "hypergrad", "cosine", "update_norm"),
        *("train_loss", "test_loss", "accuracy", "validation_accuracy", "epsilon"),
        *("seconds_train", "seconds_aggregate", "seconds_evaluate"),
        *("bytes_up", "bytes_down", "clients_used", "clients_rejected", "start_trials"),
    )
)


def _text(path: Path, problems: list[str]) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def read_table(path: Path, problems: list[str]) -> dict[str, Any]:
    """A TOML file as tables; empty, with a line in ``problems``, when it cannot be read."""
    text = _text(path, problems)
    if text is None:
        problems.append(f"{path.name} is missing")
        return {}
    try:
        return clean(tomllib.loads(text))  # type: ignore[no-any-return]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        problems.append(f"{path.name} is not TOML: {_first_line(error)}")
        return {}


def read_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """A JSON file that holds an object; None when it is missing, with a line in ``problems`` when it is broken."""
    text = _text(path, problems)
    if text is None:
        return None
    try:
        value = clean(json.loads(text))
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} is not JSON: {_first_line(error)}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds no object")
        return None
    return value


def read_rounds(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The rounds in ``metrics.jsonl``, ascending, numbers as floats; a broken line becomes one in ``problems``."""
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
    record: dict[str, Any] = clean(value)
    for key, given in record.items():
        if key in _NUMBERS:
            record[key] = number(given)
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


def clean(value: Any) -> Any:
    """Strings that any encoder accepts: JSON may hold half a surrogate pair, file names arbitrary bytes."""
    kind = type(value)
    if kind in _PLAIN:  # nearly everything in a metrics file
        return value
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if kind is dict:
        return {clean(str(key)): item if type(item) in _PLAIN else clean(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in _PLAIN else clean(item) for item in value]
    return value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
