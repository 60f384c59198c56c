"""Flower's quickstart app and the two lines: literally two, they apply, and they are worth it."""

from __future__ import annotations

import importlib
import logging
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict

from tests.flower_support import LocalGrid

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower_quickstart"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def accuracy(directory: Path, monkeypatch: pytest.MonkeyPatch, nodes: int = 5, **changed: Any) -> float:
    """Run the app in this directory in process; the final model's accuracy on the test set."""
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(directory))
    config = tomllib.loads((directory / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | changed
    server, client = (importlib.import_module(f"quickstart.{name}_app") for name in ("server", "client"))
    random.seed(0)  # FedAvg draws the order of nodes, and with it who tries which rate
    grid = LocalGrid(client.app, nodes, run_config=config)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    last = [message for message in grid.sent if message.metadata.message_type == "evaluate"][-1]
    task = importlib.import_module("quickstart.task")
    model = task.Net()
    model.load_state_dict(last.content["arrays"].to_torch_state_dict())
    return float(task.test(model, task.load_data(0, 5, 32)[1], "cpu")[1])


def patched(tmp_path: Path, *diffs: str) -> Path:
    directory = tmp_path / "-".join(("app", *diffs))
    shutil.copytree(EXAMPLE, directory)
    for diff in diffs:
        subprocess.run(["patch", "-p1", "-i", diff], cwd=directory, check=True, capture_output=True)
    return directory


def test_the_diff_changes_two_lines() -> None:
    for name in ("two-lines.diff", "two-more-lines.diff"):
        lines = (EXAMPLE / name).read_text().splitlines()
        added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
        removed = [line for line in lines if line.startswith("-") and not line.startswith("---")]
        assert (len(added), len(removed)) == (2, 1)


@pytest.mark.parametrize("rate", [0.001, 1.0])  # much too low, much too high
def test_two_lines_beat_none_from_a_bad_rate(rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over five orders of nodes: which of them begin at a rate that bounces depends on a processor's last bits."""
    plain = accuracy(patched(tmp_path), monkeypatch, **{"learning-rate": rate})
    assert plain < 0.3
    app = patched(tmp_path, "two-lines.diff")
    ours = []
    for order in range(5):
        monkeypatch.setattr(f"{__name__}.LocalGrid", partial(LocalGrid, shuffle=order))
        ours.append(accuracy(app, monkeypatch, **{"learning-rate": rate}))
    assert min(ours) > 0.7
    assert median(ours) > 0.9


@pytest.mark.parametrize("order", range(5))
def test_three_rounds_are_at_least_as_good_as_plain(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the app is shipped, but for the data: the order of nodes says who tries which rate."""
    monkeypatch.setattr(f"{__name__}.LocalGrid", partial(LocalGrid, shuffle=order))
    plain = accuracy(patched(tmp_path), monkeypatch, **{"num-server-rounds": 3})
    assert accuracy(patched(tmp_path, "two-lines.diff"), monkeypatch, **{"num-server-rounds": 3}) >= plain


@pytest.mark.parametrize("order", [0, 2, 8])  # a guess at the best rate ended at 13.3, 7.2 and 7.2 %
def test_ten_nodes_whose_first_round_tells_nothing_keep_what_plain_has(
    order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five steps a round: three rounds at the shipped rate stay at the loss of guessing, and so does any near it."""
    monkeypatch.setattr(f"{__name__}.LocalGrid", partial(LocalGrid, shuffle=order))
    plain = accuracy(patched(tmp_path), monkeypatch, 10, **{"num-server-rounds": 3})
    with caplog.at_level(logging.WARNING, "flwr"):
        ours = accuracy(patched(tmp_path, "two-lines.diff"), monkeypatch, 10, **{"num-server-rounds": 3})
    assert ours >= plain - 0.01
    assert sum("tell no rate from another" in record.message for record in caplog.records) == 1


def test_two_more_lines_change_nothing_when_the_server_is_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num-server-rounds": 4}
    two = accuracy(patched(tmp_path, "two-lines.diff"), monkeypatch, **settings)
    four = accuracy(patched(tmp_path, "two-lines.diff", "two-more-lines.diff"), monkeypatch, **settings)
    assert two == four
