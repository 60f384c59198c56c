"""Runs that are there already: whoever made them, and under whatever name, a finished run of the same config is lent.

The same config gives the same bits, so the config alone decides. A run of more rounds is lent, too: its first rounds
are the run that was asked for. What older versions wrote is read with today's defaults for what they did not know.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedhyper.errors import UserError
from fedhyper.lab.config.model import Config, dump
from fedhyper.lab.paper.planning import Planned
from fedhyper.lab.results.stored import StoredRun, load_runs
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.running.progress import Progress
from fedhyper.storage.files import disk_errors, read_json

# What makes a finished run complete for a reader; the rest is for continuing it.
_KEPT = ("config.toml", "metrics.jsonl", "summary.json", "env.json", "partition.json")


class Shelf:
    """Every finished run under a directory, links followed, by its config."""

    def __init__(self, root: Path) -> None:
        self._runs: dict[str, list[tuple[int, Path]]] = {}
        for path in _run_directories(root):
            try:
                config = read_config(path)
            except UserError:  # of a plugin that is not here, or damaged: no run of the paper's
                continue
            status = (read_json(path / "summary.json") or {}).get("status")
            if config is not None and status in ("finished", "diverged"):
                self._runs.setdefault(_key(config), []).append((config.rounds, path))

    def find(self, config: Config) -> Path | None:
        """A finished run with this config, else one that only has more rounds; None when there is none."""
        known = sorted(self._runs.get(_key(config), []))
        return next((path for rounds, path in known if rounds >= config.rounds), None)

    def lend(self, row: Planned, target: Path) -> bool:
        """Put a copy of the planned run into directory ``target``; whether there was one to copy."""
        source = self.find(row.cell.config)
        if source is None or target.exists():
            return False
        run = load_runs([source])[0]
        part = target.parent / f".{target.name[:200]}.tmp"
        with disk_errors(target):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for name in _KEPT:
                shutil.copyfile(source / name, part / name)
            if run.planned != row.cell.config.rounds and not _cut(run, row.cell.config, part):
                shutil.rmtree(part)
                return False
            part.rename(target)
        return True


def _run_directories(root: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for here, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(here)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if real in seen or "config.toml" in files:
            folders.clear()
        if real not in seen and all(name in files for name in _KEPT):
            yield Path(here)
        seen.add(real)


def _key(config: Config) -> str:
    values = config.values()
    del values["rounds"]
    return json.dumps(values, sort_keys=True)


def _cut(run: StoredRun, config: Config, part: Path) -> bool:
    """Make the copy in ``part`` the run of the first rounds; False when it did not get or look that far."""
    rounds = run.rounds[: config.rounds]
    if run.status != "finished" or len(rounds) < config.rounds or rounds[-1].get("accuracy") is None:
        return False
    lines = (part / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (part / "metrics.jsonl").write_bytes(b"".join(lines[: config.rounds]))
    (part / "config.toml").write_text(dump(config), encoding="utf-8")
    progress = Progress(config.target_accuracy)
    for record in rounds:
        progress.add(record)
    summary = {**progress.summary("finished", ""), "cut_from_rounds": int(run.planned)}
    (part / "summary.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return True
