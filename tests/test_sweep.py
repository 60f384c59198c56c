"""A sweep: its grid, its cells, and that the same command continues it whatever ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedhyper.errors import CheckpointRefused, StorageError, UserError
from fedhyper.lab.cli import main
from fedhyper.lab.config.toml import read_toml
from fedhyper.lab.running.run import run_experiment
from fedhyper.lab.sweep.checking import check_cells
from fedhyper.lab.sweep.display import SweepQuiet, closing, describe
from fedhyper.lab.sweep.grid import MAX_NAME, Cell, Grid, cell_name, make_cells, parse_axes, parse_axis
from fedhyper.lab.sweep.packing import longest_first
from fedhyper.lab.sweep.run import Outcome, ended_before, run_sweep
from fedhyper.storage.files import lock, read_json

TINY: dict[str, Any] = {
    "task": "digits", "rounds": 5, "clients": 6, "clients_per_round": 3, "eval_every": 1, "method": "fedavg",
}  # fmt: skip


def cells(*axes: str, **changes: Any) -> list[Cell]:
    return make_cells(TINY | changes, parse_axes(axes), "x.toml")


# --- the grid ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("local_lr=0.001,0.01,0.1", [0.001, 0.01, 0.1]),
        ("seed=0..2", [0, 1, 2]),
        ("seed=0..1,7", [0, 1, 7]),
        ("method=fedavg,fedhyper-g+cl", ["fedavg", "fedhyper-g+cl"]),
        ('method="a,b",c', ["a,b", "c"]),
        ("x=[1,2],[3]", [[1, 2], [3]]),
        ("stop_at_target=true,false", [True, False]),
        ("seed=5", [5]),
    ],
)
def test_axes(text: str, values: list[Any]) -> None:
    assert parse_axis(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize(
    "texts",
    [
        ["seed"],
        ["seed="],
        ["seed=1,,2"],
        ["seed=3..1"],
        ["seed=0..999999999"],
        ["seed=1,1"],
        ["seed=0..2,1"],
        ["seed=1", "seed=2"],
        ["seed=x,y"],
        ["sed=1,2"],
        ["local_lr=0.1,nan"],
        ["method=fedavg,fedhyperg"],
        ["clients_per_round=3,7"],
        ["method=fedavg,fedavgm", "fedadam:seed=1,2"],
        ["method=fedavg,fedavgm", "fedavgm:seed=1,2", "fedavgm:seed=3"],
        ["method=fedavg,fedavgm", "fedavgm:method=fedavg"],
        ["method=fedavg,fedavgm", "fedavg:options.momentum=0.8,0.9"],
        ["seed=0..999", "local_lr=" + ",".join(f"0.{i:03d}1" for i in range(1, 999))],
    ],
)
def test_grids_that_are_none(texts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        cells(*texts)
    assert str(caught.value).isprintable()


def test_the_product_in_order() -> None:
    names = [cell.name for cell in cells("local_lr=0.1,1", "seed=0..1", "rounds=3")]
    assert names == ["local_lr=0.1,seed=0", "local_lr=0.1,seed=1", "local_lr=1,seed=0", "local_lr=1,seed=1"]
    assert all(cell.config.rounds == 3 for cell in cells("seed=0..1", "rounds=3"))
    assert [cell.name for cell in cells("rounds=3")] == ["base"]


def test_every_method_has_a_grid_of_its_own() -> None:
    grid = cells(
        "method=fedavg,fedavgm,fedhyper",
        "local_lr=0.1,1",
        "seed=7",
        "fedavgm:options.momentum=0.8,0.9",
        "fedavgm: local_lr=0.5",
        "fedhyper:local_lr=0.01",
    )
    assert [cell.name for cell in grid] == [
        "method=fedavg,local_lr=0.1",
        "method=fedavg,local_lr=1",
        "method=fedavgm,options.momentum=0.8",
        "method=fedavgm,options.momentum=0.9",
        "method=fedhyper",
    ]
    assert [cell.config.local_lr for cell in grid] == [0.1, 1.0, 0.5, 0.5, 0.01]
    assert [cell.config.options.get("momentum") for cell in grid[2:4]] == [0.8, 0.9]
    assert {cell.config.seed for cell in grid} == {7}
    alone = cells("fedavg:local_lr=0.1,0.2")  # the config's own method
    assert [cell.name for cell in alone] == ["local_lr=0.1", "local_lr=0.2"]


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        (["model=logistic,cn"], "cell model=cn: there is no model 'cn'"),
        (["clients=6,5000"], "cell clients=5000: "),
        (["model=logistic,mlp", "model_options.hidden=3"], "cell model=logistic: "),
    ],
)
def test_what_cannot_be_built_is_said_before_the_first_cell(axes: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        check_cells(cells(*axes))
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    "value",
    [
        "..",
        "../../etc/passwd",
        "/abs",
        "a\\b",
        "a\0b",
        "~",
        "x ",
        "CON",
        "a\nb",
        "\x1b[31m",
        "ü",
        "\u202e",
        "x" * 500,
        "*",
    ],
)
def test_names_are_safe(tmp_path: Path, value: str) -> None:
    name = cell_name([("model_options.x", value)])
    assert len(name) <= MAX_NAME
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set("/\\ \0*?<>|:\"'~$&;")
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()


def test_a_cell_is_named_by_every_axis() -> None:
    names = [cell.name for cell in cells("method=fedavg,fedexp", "rounds=2,4", "eval_every=2")]
    assert names == [f"method={method},rounds={rounds}" for method in ("fedavg", "fedexp") for rounds in (2, 4)]


def test_names_stay_apart() -> None:
    names = [cell.name for cell in cells('model_options.x="a b","a-b","a/b"')]
    assert len(set(names)) == 3


# --- running it ----------------------------------------------------------------------------------------------


class Note(SweepQuiet):
    """Remembers what it was told."""

    def begin(self, total: int, skipped: int, jobs: int) -> None:
        super().begin(total, skipped, jobs)
        self.told = (total, skipped)


def sweep(grid: Sequence[Cell], out: Path, jobs: int = 2) -> tuple[list[Outcome], Note]:
    note = Note()
    return run_sweep(grid, out, description={"axes": {"seed": [0, 1]}}, jobs=jobs, display=note), note


def weights(path: Path) -> str:
    summary = read_json(path / "summary.json")
    assert summary is not None
    return str(summary["weights_sha256"])


def test_a_sweep(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    # fedprox with these rates is infinite after one round: a result, not a failure
    bad = make_cells(
        TINY | {"method": "fedprox", "local_lr": 1e6, "options": {"mu": 1e6}, "max_bad_rounds": 2, "batch_size": 8},
        Grid(),
        "x.toml",
    )
    grid = [*cells("seed=0..2"), *bad]
    outcomes, note = sweep(grid, out)
    assert [(one.cell.name, one.status) for one in outcomes] == [
        ("seed=0", "finished"),
        ("seed=1", "finished"),
        ("seed=2", "finished"),
        ("base", "diverged"),
    ]
    assert note.told == (4, 0)
    assert read_toml(out / "sweep.toml") == {"axes": {"seed": [0, 1]}}
    assert json.loads((out / "failures.json").read_text()) == {}

    run_experiment(grid[1].config, tmp_path / "alone")
    assert weights(out / "cells" / "seed=1") == weights(tmp_path / "alone")

    # the same command once more: nothing to do, no process started
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.jsonl")}
    outcomes, note = sweep(grid, out)
    assert note.told == (4, 4)
    assert all(one.skipped for one in outcomes)
    assert outcomes[0].accuracy is not None
    assert before == {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.jsonl")}

    # with more rounds the cells go on; with another rate they are others' cells
    assert ended_before(cells("seed=0..1", "rounds=9")[0], out) is None
    with pytest.raises(CheckpointRefused, match=r"local_lr \(0.5, not 0.01\)"):
        sweep(cells("seed=0..1", local_lr=0.5), out)


def test_fewer_rounds_than_there_are_are_refused_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "digits", "method=fedavg", "seed=0,1", "clients=6", "clients_per_round=3", "--no-report", "-q"]
    for rounds, code in ((2, 0), (1, 2)):
        with pytest.raises(SystemExit) as ended:
            main([*command, f"rounds={rounds}"])
        assert ended.value.code == code
    said = capsys.readouterr().err
    assert "cells/seed=0 has 2 rounds already, more than rounds = 1; ask for more, choose another --out, or" in said
    assert "delete the directory" in said, "sweep has no --fresh"
    assert read_toml(tmp_path / "runs/digits-sweep/sweep.toml")["fixed"]["rounds"] == 2


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    (out / "cells" / "seed=0").mkdir(parents=True)
    (out / "cells" / "seed=0" / "thesis.tex").write_text("x")
    outcomes, _ = sweep(cells("seed=0..1"), out, jobs=1)
    assert [one.status for one in outcomes] == ["failed", "finished"]
    assert outcomes[0].exit_code == 2
    assert "holds no run" in json.loads((out / "failures.json").read_text())["seed=0"]
    assert closing(outcomes, 2) == "2 cells: 1 failed, 1 finished"
    assert closing(outcomes, 47) == "47 cells: 1 failed, 1 finished, 45 left to the same command"
    assert "holds no run" in describe(outcomes[0])


def test_where_it_may_not_go(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "x.tex").write_text("x")
    with pytest.raises(UserError, match="holds no sweep"):
        sweep(cells("seed=0..1"), tmp_path / "thesis")
    (tmp_path / "sweep").mkdir()
    held = lock(tmp_path / "sweep")
    (tmp_path / "sweep" / "cells").mkdir()
    with pytest.raises(StorageError, match="in use"):
        sweep(cells("seed=0..1"), tmp_path / "sweep")
    os.close(held)


def start(tmp_path: Path) -> subprocess.Popen[str]:
    config = tmp_path / "x.toml"
    config.write_text("rounds = 150\nclients = 6\nclients_per_round = 3\nmethod = 'fedavg'\n")
    command = [sys.executable, "-m", "fedhyper.lab.cli", "sweep", str(config), "seed=0..3", "--out"]
    command += [str(tmp_path / "sweep"), "--jobs", "2", "--no-report"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kill_9_of_a_worker_and_of_the_sweep(tmp_path: Path) -> None:
    metrics = [tmp_path / "sweep" / "cells" / f"seed={i}" / "metrics.jsonl" for i in range(4)]
    process = start(tmp_path)
    with process:
        while not all(path.exists() and path.stat().st_size > 3000 for path in metrics[:2]):
            assert process.poll() is None
            time.sleep(0.02)
        workers = children(process.pid)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)  # that cell is continued by another process
        while not (tmp_path / "sweep" / "cells" / "seed=2" / "metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.02)
        workers = children(process.pid)
        process.kill()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their sweep"
        time.sleep(0.02)
    with start(tmp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "4 cells: 4 finished" in out
    assert "Traceback" not in err
    for cell in make_cells(read_toml(tmp_path / "x.toml"), parse_axes(["seed=0..3"]), "x")[:2]:
        run_experiment(cell.config, tmp_path / cell.name)
        assert weights(tmp_path / cell.name) == weights(tmp_path / "sweep" / "cells" / cell.name)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_interrupted(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        first = tmp_path / "sweep" / "cells" / "seed=0" / "metrics.jsonl"
        while not (first.exists() and first.stat().st_size > 2000):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "fedhyper: interrupted; the same command continues the sweep"
    summary = read_json(first.parent / "summary.json")
    assert summary is not None
    assert summary["status"] in ("interrupted", "finished")


def test_the_longest_cells_start_first() -> None:
    cells = make_cells(
        {"task": "digits"}, parse_axes(["rounds=2,40,10", "model=logistic,cnn", "seed=0..1"]), "command line"
    )
    order = [(cell.config.model, cell.config.rounds, cell.config.seed) for cell in longest_first(cells)]
    assert order == [(m, rounds, seed) for m in ("cnn", "logistic") for rounds in (40, 10, 2) for seed in (0, 1)]
