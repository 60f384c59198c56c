"""What a Flower run leaves behind: a record a round, and a directory that the report shows like any other."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedhyper.errors import TrainingStopped, UserError
from fedhyper.flower import FedHyper
from fedhyper.lab.cli import main
from fedhyper.lab.results.stored import load_runs
from fedhyper.storage.record import RoundRecord
from tests.flower_support import LocalGrid, initial, quadratic_app
from tests.test_flower_resume import DyingGrid, Killed, untimed


def accuracy(server_round: int, record: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": 0.5 + server_round / 100, "loss": 1.0 / (server_round + 1)})


def start(directory: Path | None, rounds: int = 4, grid: Any = None, evaluate: Any = accuracy, **settings: Any) -> Any:
    resume = settings.pop("resume", "checkpoint" in settings)
    strategy = FedHyper(FedAvg(fraction_evaluate=0.0), "g", seed=0, run_dir=directory, local_lr=0.02, **settings)
    grid = grid or LocalGrid(quadratic_app(), 6)
    strategy.start(grid, initial(), num_rounds=rounds, evaluate_fn=evaluate, resume=resume)
    return strategy


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_record_has_the_simulators_keys_and_says_what_happened() -> None:
    strategy = start(None)
    for t, row in enumerate(strategy.history, 1):
        assert set(row) == set(RoundRecord.__annotations__) - {
            *("client_accuracy", "start_trials", "start_failed", "epsilon", "validation_accuracy")
        }
        assert (row["round"], row["accuracy"], row["test_loss"]) == (t, 0.5 + t / 100, 1.0 / (t + 1))
        assert row["clients_used"] == 6
        assert row["local_lr"] == row["local_lr_min"] == row["local_lr_max"] == 0.02
        sent = sum(len(array.data) for array in initial().values())
        assert (row["bytes_up"], row["bytes_down"]) == (6 * sent, 6 * sent)
        assert all(row[key] >= 0 for key in ("seconds_train", "seconds_aggregate", "seconds_evaluate"))
        assert row["update_norm"] > 0
        assert row["train_loss"] > 0
    assert strategy.history[0]["hypergrad"] is None
    assert strategy.history[0]["cosine"] is None
    assert 0 < strategy.history[1]["cosine"] <= 1


def test_clients_evaluation_counts_where_there_is_no_other() -> None:
    strategy = FedHyper(FedAvg(), "g", seed=0)
    strategy.start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=2)
    assert [row["accuracy"] for row in strategy.history] == [0.5, 0.5]


def test_the_report_shows_a_flower_run_like_any_other(tmp_path: Path) -> None:
    strategy = start(tmp_path / "run")
    assert rows(tmp_path / "run") == strategy.history
    [run] = load_runs([tmp_path / "run"])
    assert run.problems == []
    assert (run.status, run.method, run.final_accuracy) == ("finished", "fedhyper-g", 0.54)
    assert run.config["strategy"] == "FedAvg"
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "run"), "-o", str(page)])
    assert ended.value.code in (0, None)
    text = page.read_text()
    assert "54.0" in text
    assert 'id="accuracy' in text
    assert "0.53" in text  # the curve's own numbers


def test_a_resumed_run_goes_on_in_the_same_directory(tmp_path: Path) -> None:
    whole, path = start(tmp_path / "whole"), tmp_path / "run"
    with pytest.raises(Killed):
        start(path, grid=DyingGrid(quadratic_app(), 6, dies_at=3, after=True), checkpoint=tmp_path / "c")
    assert json.loads((path / "summary.json").read_text())["status"] == "interrupted"
    assert len(rows(path)) == 2
    start(path, checkpoint=tmp_path / "c")
    assert [untimed(row) for row in rows(path)] == [untimed(row) for row in whole.history]
    for name in ("summary.json", "config.toml"):
        assert (path / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_round_evaluated_after_it_was_saved_keeps_its_accuracy(tmp_path: Path) -> None:
    """Killed after round 2 was evaluated, and resumed by a server that evaluates nothing."""
    grid = DyingGrid(quadratic_app(), 6, dies_at=3, after=True)
    with pytest.raises(Killed):
        start(tmp_path / "run", grid=grid, checkpoint=tmp_path / "c")
    again = start(tmp_path / "run", evaluate=None, checkpoint=tmp_path / "c")
    assert [row["accuracy"] for row in again.history] == [0.51, 0.52, None, None]


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    start(tmp_path / "run")
    before = rows(tmp_path / "run")
    for settings in ({}, {"resume": True}, {"checkpoint": tmp_path / "never"}):
        with pytest.raises(UserError, match=r"holds a run; .* from the run's checkpoint"):
            start(tmp_path / "run", **settings)
    assert rows(tmp_path / "run") == before


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    settings = {"checkpoint": tmp_path / "c", "checkpoint_every": 3}
    with pytest.raises(Killed):
        start(tmp_path / "run", grid=DyingGrid(quadratic_app(), 6, dies_at=3, after=True), **settings)
    assert (len(rows(tmp_path / "run")), (tmp_path / "c").exists()) == (2, False)
    start(tmp_path / "run", **settings)
    assert [row["round"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_run_that_stops_says_so(tmp_path: Path) -> None:
    grid = LocalGrid(quadratic_app(), 6, spoil=dict.fromkeys(range(6), lambda reply: []))
    with pytest.raises(TrainingStopped):
        start(tmp_path / "run", rounds=9, grid=grid)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"
    assert [row["clients_used"] for row in rows(tmp_path / "run")] == [0] * 5


@pytest.mark.parametrize("schedule", ["auto", "constant", "g+sl"])
def test_config_toml_is_toml(schedule: str, tmp_path: Path) -> None:
    strategy = FedHyper(FedAvg(), schedule, run_dir=tmp_path / "run", seed=None)
    strategy.start(LocalGrid(quadratic_app(), 3), initial(), num_rounds=1)
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["schedule"], config["engine"], config["rounds"]) == (schedule, "flower", 1)
    assert np.isfinite(config["local_lr"])
    assert "seed" not in config
