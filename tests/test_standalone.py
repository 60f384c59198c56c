"""Layer 1 in an environment of its own, without NumPy and torch: it runs there, and the numbers are the same."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import fedhyper

SCRIPT = Path(__file__).with_name("standalone.py")
SOURCE = Path(fedhyper.__file__).parents[1]


def test_layer_1_runs_without_numpy_and_torch(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-W", "error", SCRIPT],
        env=clean | {"PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert there["missing"] == ["numpy", "torch"], "the environment is not bare, so this test shows nothing"
    assert Path(there["file"]) == Path(fedhyper.__file__)
    here = json.loads(json.dumps(runpy.run_path(str(SCRIPT))["numbers"]()))
    assert len(here) == 43  # as many rules, optimizers and plans
    assert there["numbers"] == here  # to the last bit


def test_every_public_name_is_exercised() -> None:
    text = SCRIPT.read_text()
    inside = {"Auto", "LRState", "PlanState", "Seen", "Shape"}  # what auto(), Scheduler and Server are made of
    inside |= {"Decision", "LoopState", "Model", "RoundReport", "ServerLoop", "Newest", "LastRounds"}
    inside |= {"log"}  # of the lab
    for name in set(fedhyper.__all__) - inside:
        assert f"fedhyper.{name}(" in text, name
