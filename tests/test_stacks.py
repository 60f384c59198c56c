"""Stacked clients: any number of local steps in the same memory, and what a step of many chunks gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim_support import make_simulation, run

_PEAK = """
import resource, sys
from tests.sim_support import make_simulation
simulation = make_simulation("fedhyper-cl", model="logistic", local_lr=1e-3, local_steps=int(sys.argv[1]),
                             clients_per_round=8, batch_size=64, workers=1)
simulation.run_round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak(steps: int) -> int:
    """MB that a process has needed at most for a round of so many local steps."""
    return int(subprocess.run([sys.executable, "-c", _PEAK, str(steps)], capture_output=True, check=True).stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no ru_maxrss")
def test_memory_does_not_grow_with_local_steps() -> None:
    # drawn and padded at once, 8,000 steps of 8 clients would take 0.3 GB more than 1,000
    assert peak(8_000) < peak(1_000) + 60


@pytest.mark.parametrize("method", ["fedavg", "fedhyper-cl"])
def test_more_steps_than_are_prepared_at_once(method: str) -> None:
    settings = {"model": "logistic", "local_lr": 1e-3, "local_steps": 900, "batch_size": 128, "clients": 6}
    slow, fast = (run(make_simulation(method, engine=engine, **settings), 1)[0] for engine in ("sequential", "fast"))
    for key in ("local_lr", "local_lr_min", "local_lr_max", "train_loss", "test_loss", "update_norm"):
        assert slow[key] == pytest.approx(fast[key], rel=1e-3), key
