"""Published runs: a finished run in one small file, so that every page can be made again on any clone.

    PAGES/runs/mnist-fedavg-seed0-1f0c9a2e.json

It has what a reader of a run needs (config, rounds, summary, env) and nothing that only continues one. Rounds are
written by column, a line each, and a value that never changes once: 50 rounds are 10 kB, and git shows what differs.
The split of the data is left out: it follows from the config, and is ten times the rest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedhyper.errors import StorageError
from fedhyper.lab.config.model import dump, make_config
from fedhyper.lab.running.directory import read_config
from fedhyper.storage.files import disk_errors, write_new

RUNS = "runs"  # the folder beside the pages
FILES = ("config.toml", "metrics.jsonl", "summary.json", "env.json")


def publish(run: Path, folder: Path) -> Path:
    """Write the finished run in directory ``run`` into ``folder``, in place of an older one of its config.

    The number of rounds is not in the name: a longer run takes the place of a shorter one.
    """
    config = read_config(run)
    if config is None:
        raise StorageError(f"{run} holds no run; publish a run directory")
    values = config.values()
    with disk_errors(run):
        lines = (run / "metrics.jsonl").read_bytes().splitlines()
        summary, env = (json.loads((run / name).read_bytes()) for name in ("summary.json", "env.json"))
    content = {"config": values, "summary": summary, "env": env, **_columns([json.loads(line) for line in lines])}
    same = json.dumps({key: value for key, value in values.items() if key != "rounds"}, sort_keys=True)
    name = f"{config.task}-{config.method}-seed{config.seed}-{hashlib.sha256(same.encode()).hexdigest()[:8]}.json"
    return write_new(folder / name, _text({"sha256": _digest(content), **content}))


def read_published(file: Path) -> dict[str, bytes]:
    """The files of the run directory that was published as ``file``; refused when a bit of it is another."""
    with disk_errors(file):
        written = file.read_bytes()
    try:
        content = json.loads(written)
        digest = content.pop("sha256")
        if digest != _digest(content):
            raise StorageError(f"{file} was changed since it was published; restore it, or delete it to run it again")
        config = make_config(content["config"], str(file))
        rounds = "".join(json.dumps(record) + "\n" for record in _records(content, len(content["each"]["round"])))
        texts = [dump(config), rounds, *(json.dumps(content[key]) + "\n" for key in ("summary", "env"))]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        what = f"{file} is no published run ({type(error).__name__})"
        raise StorageError(f"{what}; restore it, or delete it to run it again") from error
    return {name: text.encode() for name, text in zip(FILES, texts, strict=True)}


# --- rounds by column ------------------------------------------------------------------------------------------


def _columns(records: list[dict[str, Any]]) -> dict[str, Any]:
    """``always``: what every round has alike; ``each``: a value a round; ``some``: by round, where not all have one."""
    always: dict[str, Any] = {}
    each: dict[str, list[Any]] = {}
    some: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        values = {i: record[key] for i, record in enumerate(records) if key in record}
        if len(values) < len(records):
            some[key] = {str(i): value for i, value in values.items()}
        elif key != "round" and all(value == values[0] for value in values.values()):
            always[key] = values[0]
        else:
            each[key] = list(values.values())
    return {"always": always, "each": each, "some": some}


def _records(content: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The rounds that ``_columns`` was given; ``round`` first, the rest in no order that matters."""
    records = []
    for i in range(count):
        record = {key: values[i] for key, values in content["each"].items()} | content["always"]
        records.append(record | {key: values[str(i)] for key, values in content["some"].items() if str(i) in values})
    return records


# --- the file --------------------------------------------------------------------------------------------------


def _digest(content: dict[str, Any]) -> str:
    """Against accidents and quick edits: whoever forges a run can forge this, too, and git has the history."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _text(content: dict[str, Any]) -> str:
    """JSON with a line a column."""
    lines = []
    for key, value in content.items():
        if key in ("each", "some") and value:
            columns = ",\n".join(f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{columns}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
