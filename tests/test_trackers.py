"""``--track`` and ``fedhyper.log``: what a tracker is told, and that training does not depend on one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedhyper
from fedhyper.errors import UserError
from fedhyper.lab import trackers
from fedhyper.lab.cli import main
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.running.progress import Silent
from fedhyper.lab.running.run import run_experiment
from fedhyper.lab.trackers import Tracking


def config(**values: Any) -> Config:
    small = {"task": "digits", "clients": 6, "clients_per_round": 3, "rounds": 3, "local_epochs": 1, "batch_size": 64}
    return make_config({**small, **values}, "test")


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def scalars(out: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads in a run directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class Notes(Silent):
    """Keeps what people are told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_tensorboard_has_every_number_of_every_round_also_after_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for rounds in (2, 3):
        run_experiment(config(rounds=rounds), tmp_path, resume=rounds == 3, display=Tracking(Silent(), ["tensorboard"]))
    written, seen = records(tmp_path), scalars(tmp_path)
    assert [step for step, _ in seen["local_lr"]] == [1, 2, 3]
    for key in ("accuracy", "local_lr", "bytes_up"):
        known = [(record["round"], pytest.approx(record[key])) for record in written if record[key] is not None]
        assert seen[key] == known
    assert not {"round", "rollback", "reject_reasons"} & set(seen)


def test_the_cells_of_a_sweep_are_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    file = tmp_path / "tiny.toml"
    file.write_text('task = "digits"\nclients = 4\nclients_per_round = 2\nrounds = 2\n')
    with pytest.raises(SystemExit) as ended:
        main(f"sweep {file} seed=0..1 -o {tmp_path / 'out'} --track tensorboard -q --no-report".split())
    assert ended.value.code == 0
    cells = sorted((tmp_path / "out" / "cells").iterdir())
    assert [len(scalars(cell)["local_lr"]) for cell in cells] == [2, 2]


def test_a_function_is_told_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedhyper, "LISTENERS", [])
    told: list[tuple[str, dict[str, Any]]] = []
    fedhyper.log(lambda directory, record: told.append((directory, record)))
    run_experiment(config(), tmp_path, display=Tracking(Silent(), []))
    assert told == [(str(tmp_path), record) for record in records(tmp_path)]


@pytest.mark.parametrize("when", ["log", "close"])
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    @contextlib.contextmanager
    def broken(run: Any) -> Iterator[Any]:
        yield lambda t, numbers: 1 / 0 if when == "log" and t == 2 else None
        if when == "close":
            raise OSError("no network")

    monkeypatch.setitem(trackers.TRACKERS, "json", broken)  # some name that can be imported
    notes = Notes()
    summary = run_experiment(config(), tmp_path, display=Tracking(notes, ["json"]))
    assert (summary["status"], summary["rounds"]) == ("finished", 3)
    told = {"log": "--track json failed in round 2 and is left out: ZeroDivisionError", "close": "could not be closed"}
    assert [told[when] in text for text in notes.texts] == [True]


def test_a_tracker_that_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(run: Any) -> Any:
        raise RuntimeError("log in\nfirst")

    monkeypatch.setitem(trackers.TRACKERS, "json", closed)
    with pytest.raises(UserError, match=r"^--track json: RuntimeError: log in first$"):
        run_experiment(config(), tmp_path, display=Tracking(Silent(), ["json"]))
