"""Both ends of the Flower versions that pyproject.toml allows: what Flower calls and what calls Flower, in process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ("strategy", "nesting", "replies", "start", "client", "resume", "run_log")  # the others train for long


# Without what it asks for: 1.42.0 wants a certifi that our package index did not have when this was written.
@pytest.mark.flower
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_the_oldest_and_the_newest_flower(end: str, tmp_path: Path) -> None:
    [lowest, below] = re.findall(r'"flwr\[simulation\]>=([\d.]+),<(\d+)"', (ROOT / "pyproject.toml").read_text())[0]
    wanted = f"flwr=={lowest}.*" if end == "oldest" else f"flwr>={lowest},<{below}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "flwr"), wanted], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "flwr")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        return done.stdout

    loaded = python("-c", "import flwr; print(flwr.__version__, flwr.__file__)")
    assert str(tmp_path) in loaded
    tests = [f"tests/test_flower_{name}.py" for name in TESTS]
    passed = python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not flower", *tests)
    print(loaded, passed.splitlines()[-1])
