"""kill -9, signals and a full disk at random instants: what is continued ends in the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("crash_driver.py")
Tried = Callable[[int], None]


def drive(tmp_path: Path, kind: str, trials: int) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, str(DRIVER), str(tmp_path), kind, str(trials), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert "Traceback" not in done.stderr, f"seed {seed}: {done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["identical"] == result["trials"] == trials, result
    return result


def check_kills(result: dict[str, Any], tried: Tried) -> None:
    tried(result["hits"])
    assert all(code in (0, -signal.SIGKILL) for _, code in result["codes"]), result
    assert result["hits"] > 0  # or nothing was tested; how many depends on how busy the machine is


def check_signals(result: dict[str, Any], tried: Tried) -> None:
    tried(result["hits"])
    # Before the handlers are in place a signal does what it does to any process.
    assert all(code in (0, 128 + number, -number, 99) for number, code in result["codes"]), result
    assert result["hits"] > 0  # most fall before or after the run when the machine is busy
    assert result["slowest"] < 5


def test_kill_9(tmp_path: Path, tried: Tried) -> None:
    check_kills(drive(tmp_path, "kill", 15), tried)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_often(tmp_path: Path, tried: Tried) -> None:
    check_kills(drive(tmp_path, "kill", 100), tried)


def test_sigint_and_sigterm(tmp_path: Path, tried: Tried) -> None:
    check_signals(drive(tmp_path, "signal", 10), tried)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sigint_and_sigterm_often(tmp_path: Path, tried: Tried) -> None:
    check_signals(drive(tmp_path, "signal", 100), tried)


FULL = """
import sys, os
from pathlib import Path
from fedhyper.errors import StorageError
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.run import run_experiment
sys.path.insert(0, sys.argv[2])
from crash_driver import fingerprint
disk = Path(sys.argv[1])
config = make_config({"task": "digits", "rounds": 30, "clients": 6, "clients_per_round": 4, "checkpoint_every": 1})
run_experiment(config, disk / "whole")
whole = fingerprint(disk / "whole")
full = 0
for spare in range(4, 120, 12):
    out = disk / f"run-{spare}"
    out.mkdir()
    filler = disk / "filler"
    room = os.statvfs(disk)
    filler.write_bytes(b"x" * max(0, room.f_bavail * room.f_frsize - spare * 1024))
    try:
        run_experiment(config, out)
    except StorageError as error:
        assert error.exit_code == 74 and "No space left" in str(error) and "\\n" not in str(error), error
        full += 1
    filler.unlink()
    run_experiment(config, out, resume=True)
    assert fingerprint(out) == whole, spare
    assert not list(out.rglob("*.tmp"))
assert full >= 3, full
print("full", full)
"""


def test_a_real_full_disk(tmp_path: Path, tried: Tried) -> None:
    mounted = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False)
    if probe.returncode != 0 or os.geteuid() != 0:
        pytest.skip("this user may not mount a small disk; test_run.py injects the same errors")
    script = f'{mounted} && exec "$0" -c "$1" {tmp_path} {DRIVER.parent}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, FULL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("full")
    tried(int(done.stdout.split()[1]))


SECOND = """
import os, signal, sys, threading, time
from pathlib import Path
from fedhyper.lab.running.build import make_simulation
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.run import run_experiment
def slow(*args, **kwargs):
    sim = make_simulation(*args, **kwargs)
    sim.engine.train = lambda *a, **k: time.sleep(60)
    print("training", flush=True)
    return sim
run_experiment(make_config({"task": "digits", "clients": 10}), Path(sys.argv[1]), make=slow)
"""


def test_the_second_signal_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SECOND, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
        assert time.monotonic() - started < 0.5
