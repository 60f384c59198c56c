"""The trackers that make test has no room for, offline: wandb, mlflow, trackio. Run by ``make test-engines``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="run by make test-engines, in an environment of its own")

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

TINY = 'task = "digits"\nclients = 4\nclients_per_round = 2\neval_every = 1\n'


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(tracker: str) -> list[dict[str, Any]]:
    """Two rounds, then a third in a new process; the records of the run come back."""
    for arguments in (["rounds=2"], ["rounds=3", "--resume"]):
        command = [sys.executable, "-m", "fedhyper", "run", "tiny.toml", *arguments]
        command += ["--out", "out", "--track", tracker, "--no-report"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "--track" not in done.stdout + done.stderr  # nothing failed on the way
    return [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]


def test_wandb() -> None:
    written = run("wandb")
    files = sorted(Path("out/wandb").glob("offline-run-*/run-*.wandb"))
    first, second = (file.read_bytes() for file in files)
    for record, file in zip(written, (first, first, second), strict=True):  # the third round was another process's
        assert json.dumps(record["local_lr"]).encode() in file  # no reader of the format is public
        assert json.dumps(record["test_loss"]).encode() in file
    assert files[0].name == files[1].name  # one run to wandb


def test_mlflow() -> None:
    from mlflow import MlflowClient

    written = run("mlflow")
    client = MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'fedhyper'")
    (tracked,) = client.search_runs([experiment.experiment_id])  # one, though two processes wrote it
    history = client.get_metric_history(tracked.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(r["round"], r["accuracy"]) for r in written]
    assert tracked.data.params["task"] == "digits"


@pytest.mark.parametrize("tracker", ["mlflow", "trackio"])
def test_the_cells_of_a_sweep_share_a_database_that_is_not_there_yet(tracker: str) -> None:
    command = [sys.executable, "-m", "fedhyper", "sweep", "tiny.toml", "rounds=1", "seed=0..3", "--out", "sweep"]
    command += ["--jobs", "4", "--track", tracker, "--no-report"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 cells: 4 finished" in done.stdout


def test_trackio() -> None:
    from trackio.sqlite_storage import SQLiteStorage

    written = run("trackio")
    (name,) = SQLiteStorage.get_runs("fedhyper")
    seen = SQLiteStorage.get_logs("fedhyper", name)
    assert [(row["step"], row["local_lr"]) for row in seen] == [(r["round"], r["local_lr"]) for r in written]
