"""The table of promises, which a run prints, and the page it is read from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PAGE, Promise, promises

ROOT = Path(__file__).parents[1]

SUITE = """
import pytest
@pytest.mark.parametrize("i", range(3))
def test_kept(i): pass
def test_kept_often(tried): tried(40)
def test_broken(tried):
    tried(7)
    raise ValueError
@pytest.mark.skip
def test_kept_elsewhere(): pass
def test_other(): pass
"""
TABLE = """
| about | promise | command | last seen |
|---|---|---|---|
| files | holds | `pytest tests/test_x.py -k kept` | |
| crash | does not | `pytest tests/test_x.py -k "nothing or BROKEN"` | |
| crash | is not run | `pytest tests/test_y.py` | |
| bits | is no test | `make golden` | |
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_prints_what_it_tried(tmp_path: Path, processes: str) -> None:
    for folder in ("docs", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "reliability.md").write_text(TABLE)
    (tmp_path / "tests" / "test_x.py").write_text(SUITE)
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "tests")
    command = [sys.executable, "-m", "pytest", "-n", processes, "-m", "promise", "--rootdir", str(tmp_path), "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout[done.stdout.index("promises: ") :].splitlines()
    assert said[1] == "files        43 of 43    holds (1 skipped): pytest tests/test_x.py -k kept"
    assert said[2] == 'crash         0 of 7     does not: pytest tests/test_x.py -k "nothing or BROKEN"'
    assert not any("is not run" in line or "is no test" in line for line in said)
    assert "1 failed, 4 passed, 1 skipped" in done.stdout


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise.says)
def test_every_command_of_the_page_names_tests_that_exist(promise: Promise) -> None:
    files = re.findall(r"tests/\w+\.py", promise.command)
    assert files
    for file in files:
        tests = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), flags=re.M)
        assert any(promise.covers(f"{file}::{test}") for test in tests), file


def test_the_page_promises_something_of_each_kind() -> None:
    assert {promise.about for promise in promises()} >= {"crash", "files", "config", "clients", "privacy"}
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`pytest " in line]
    assert len(rows) == len(promises())
