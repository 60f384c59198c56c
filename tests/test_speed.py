"""What nobody should wait for: the import, the help, a page of many runs. CPU time, with room for a slow machine."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_runs import write_run


def cpu(*arguments: str) -> float:
    """Seconds of CPU that Python needs for it: the best of three, the first of which may have to compile."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_import_and_help() -> None:
    # 0.016 and 0.23 s on two cores of a busy AMD EPYC; the import of every name at once took 0.05
    assert cpu("-c", "import fedhyper") - cpu("-c", "pass") < 0.03
    assert cpu("-m", "fedhyper", "--help") < 0.6


def test_every_name_is_there_when_it_is_asked_for() -> None:
    code = "import fedhyper as f; print([n for n in f.__all__ if getattr(f, n).__name__ != n], 'Auto' in dir(f))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[] True"
    code = "import fedhyper; fedhyper.nothing"
    failed = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr
    assert "has no attribute 'nothing'" in failed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_page_of_200_runs_of_500_rounds(tmp_path: Path) -> None:
    methods = ("fedavg", "fedexp", "fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-g+cl", "fedadam", "fedavgm")
    for method in methods:
        for i in range(25):
            rates = {"local_lr": 10.0 ** (i // 5 - 4), "global_lr": (0.1, 0.5, 1.0, 2.0, 10.0)[i % 5]}
            write_run(tmp_path / "runs" / f"{method}-{i}", method=method, rounds=500, **rates)
    page = tmp_path / "report.html"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fedhyper", "report", str(tmp_path / "runs"), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20  # 7 to 9 s on a busy machine
    assert page.stat().st_size < 3_000_000
