"""The benchmark of the simulator works: on the digits, with its own contenders, in seconds."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("benchmark") / "out.json"
    command = [sys.executable, str(BENCHMARKS / "simulator.py"), "--smoke", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def test_every_contender_does_the_same_work(report: dict[str, Any]) -> None:
    rows = report["smoke"]
    assert [row["name"] for row in rows] == ["fedhyper", "naive, 1 thread", "naive, 2 threads", "sequential twin"]
    for row in rows:
        assert "failed" not in row
        assert row["difference"] < 1e-4
        assert len(row["seconds"]) == 3
        assert all(seconds > 0 for seconds in row["seconds"])


def test_a_figure_is_the_median_of_paired_ratios(report: dict[str, Any]) -> None:
    ours, naive = report["smoke"][:2]
    ratios = [b / a for a, b in zip(ours["seconds"], naive["seconds"], strict=True)]
    assert naive["ratio"] == pytest.approx(float(np.median(ratios)))
    assert ours["ratio"] == 1


def test_the_machine_is_recorded(report: dict[str, Any]) -> None:
    assert {"cpu", "cores", "torch", "load"} <= report["machine"].keys()


def test_rounds_come_back_as_they_were_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import protocol

    clients = [
        protocol.Client(7, 5, [np.array([3, 1]), np.array([4, 1]), np.array([5])]),
        protocol.Client(2, 1, [np.array([9])]),
    ]
    protocol.save_round(tmp_path, 3, clients)
    settings = {"model": "cnn", "local_lr": 0.1, "batch_size": 2, "clients": 9, "clients_per_round": 2}
    (tmp_path / "work.json").write_text(json.dumps(settings))
    back = protocol.Work(tmp_path).round(3)
    assert [(c.number, c.examples) for c in back] == [(7, 5), (2, 1)]
    assert [[b.tolist() for b in c.batches] for c in back] == [[[3, 1], [4, 1], [5]], [[9]]]


@pytest.mark.parametrize("where", [[], ["--served"], ["--served", "--climbing"]])
def test_random_settings_are_those_of_the_page_and_their_file_is_gone_on_with(tmp_path: Path, where: list[str]) -> None:
    out = tmp_path / "random.jsonl"
    rival = {"k": 15, "method": "fedavg", "score": 50.0}
    out.write_text("".join(json.dumps(rival | {"method": name}) + "\n" for name in ("fedavg", "fedavgm")))
    command = [sys.executable, "random_settings.py", "--first", "15", "--count", "1", "--out", str(out), *where]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert "| 15 | digits, mlp 1 × 50, 3 of 4, 3 × 1, 4, dirichlet 0.3 | 50.0 |" in done.stdout
    assert len(out.read_text().splitlines()) == 3
    page = (BENCHMARKS.parent / "docs" / "results" / "start.md").read_text()
    assert "| 15 | digits, mlp 1 × 50 | 3 of 4 | 3 × 1, 4 | dirichlet 0.3 |" in page


def test_a_rival_is_tuned_by_climbing_until_two_in_a_row_are_worse() -> None:
    spec = importlib.util.spec_from_file_location("random_settings", BENCHMARKS / "random_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    best, rate = module.tuned(lambda lr: -abs(math.log10(lr) + 3), -2)
    assert (best, rate) == (0.0, 10**-3)
