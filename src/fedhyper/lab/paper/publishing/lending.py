"""Runs that are there already: whoever made them, and under whatever name, a finished run of the same config is lent.

The same config gives the same bits, so the config alone decides. A run of more rounds is lent, too: its first rounds
are the run that was asked for, even while its last ones are still to come. What older versions wrote is read with
today's defaults for what they did not know. Runs of the learning-rate-free method are its rule's as well, which is
still changing: those of another are not lent.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedhyper.errors import UserError
from fedhyper.lab.config.model import Config, dump, make_config
from fedhyper.lab.config.toml import parse_toml
from fedhyper.lab.paper.planning import Planned
from fedhyper.lab.paper.publishing.runs import FILES, read_published
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.running.progress import Progress
from fedhyper.lab.running.rule import follows_rule, rule
from fedhyper.storage.files import disk_errors, read_json

_SPLIT = "partition.json"  # for reports; a published run has none
Files = dict[str, bytes]
Values = dict[str, Any]


class Shelf:
    """Every run under ``root``, links followed, by its config; ``published`` is a folder of published ones.

    A finished run lends all its rounds or the first of them, another one only rounds that it has.
    """

    def __init__(self, root: Path | None = None, *, published: Path | None = None) -> None:
        self._runs: dict[str, list[tuple[int, Path]]] = {}
        for path in _run_directories(root) if root is not None else ():
            try:
                config = read_config(path)
            except UserError:  # of a plugin that is not here, or damaged: no run of the paper's
                continue
            if config is not None:
                self._add(path, config, read_json(path / "summary.json"), read_json(path / "env.json"))
        for path in sorted(published.glob("*.json")) if published is not None else ():
            files = read_published(path)
            config = make_config(parse_toml(files["config.toml"], str(path)), str(path))
            self._add(path, config, json.loads(files["summary.json"]), json.loads(files["env.json"]))

    def _add(self, path: Path, config: Config, summary: Values | None, env: Values | None) -> None:
        if not of_this_rule(config, env) or "begun_with_rounds" in (summary or {}):  # not what its config says
            return
        ended = (summary or {}).get("status") in ("finished", "diverged")
        rounds = config.rounds if ended else min(_recorded(path / "metrics.jsonl"), config.rounds - 1)
        self._runs.setdefault(_key(config), []).append((rounds, path))

    def find(self, config: Config) -> Path | None:
        """A run with this config that has as many rounds, or the least more; None when there is none."""
        known = sorted(self._runs.get(_key(config), []))
        return next((path for rounds, path in known if rounds >= config.rounds), None)

    def lend(self, row: Planned, target: Path) -> bool:
        """Put a copy of the planned run into directory ``target``; whether there was one to copy."""
        source = self.find(row.cell.config)
        if source is None or target.exists():
            return False
        files = _first_rounds(_read(source), row.cell.config)
        if files is None:
            return False
        part = target.parent / f".{target.name[:200]}.tmp"
        with disk_errors(target):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for name, content in files.items():
                (part / name).write_bytes(content)
            part.rename(target)
        return True


def of_this_rule(config: Config, env: Values | None) -> bool:
    """Whether a run of ``config`` that was made in ``env`` would be the same one today."""
    return not follows_rule(config.method) or (env or {}).get("rule") == rule()


def _run_directories(root: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for here, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if real in seen or "config.toml" in files:
            folders.clear()
        if real not in seen and all(name in files for name in FILES):
            yield Path(here)
        seen.add(real)


def _key(config: Config) -> str:
    values = config.values()
    del values["rounds"]
    return json.dumps(values, sort_keys=True)


def _recorded(metrics: Path) -> int:
    """How many rounds were written down whole."""
    with disk_errors(metrics):
        return metrics.read_bytes().count(b"\n")


def _read(path: Path) -> Files:
    """What a reader of the run needs, from its directory or from where it was published."""
    if path.is_file():
        return read_published(path)
    with disk_errors(path):
        return {name: (path / name).read_bytes() for name in (*FILES, _SPLIT) if (path / name).is_file()}


def _first_rounds(files: Files, config: Config) -> Files | None:
    """The run's files as those of ``config``, which asks for as many rounds or fewer; None: it did not get that far."""
    lines = files["metrics.jsonl"].splitlines(keepends=True)
    known = make_config(parse_toml(files["config.toml"], "config.toml"))
    if known.rounds == config.rounds:
        return files
    records = [json.loads(line) for line in lines[: config.rounds]]
    if len(records) < config.rounds or records[-1].get("accuracy") is None:
        return None
    progress = Progress(config.target_accuracy)
    for record in records:
        progress.add(record)
    summary = {**progress.summary("finished", ""), "cut_from_rounds": known.rounds}
    return files | {
        "config.toml": dump(config).encode(),
        "metrics.jsonl": b"".join(lines[: config.rounds]),
        "summary.json": (json.dumps(summary) + "\n").encode(),
    }
