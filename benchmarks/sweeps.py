"""How busy a sweep keeps the cores: 25 cells × 3 seeds on one and on all of them, and by a loop in a shell.

    python benchmarks/sweeps.py digits
    python benchmarks/sweeps.py fmnist model=logistic rounds=20

The loop is timed on ``--loop`` cells and multiplied: cells differ in their rates alone. There
a run has every core, as it has for whoever writes such a loop.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATES = {"local_lr": "0.01,0.03,0.1,0.3,1.0", "global_lr": "0.25,0.5,1.0,2.0,4.0"}
CELLS = 75


def seconds(*arguments: str) -> float:
    """From the command to its end."""
    command = [str(Path(sys.executable).with_name("fedhyper")), *arguments]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Time the three, print what follows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("keys", nargs="*", help="as in fedhyper sweep")
    parser.add_argument("--loop", type=int, default=6, help="cells of the loop")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    grid = [options.experiment, "method=fedavg", *options.keys]
    with tempfile.TemporaryDirectory() as scratch:
        swept = [*(f"{key}={values}" for key, values in RATES.items()), "seed=0..2"]
        one, all_cores = (
            seconds("sweep", *grid, *swept, "--jobs", str(jobs), "--out", f"{scratch}/{jobs}", "-q")
            for jobs in (1, cores)
        )
        rates = [value.split(",")[0] for value in RATES.values()]
        first = [f"{key}={value}" for key, value in zip(RATES, rates, strict=True)]
        loop = sum(
            seconds("run", *grid, *first, f"seed={i}", "--out", f"{scratch}/run{i}", "--quiet", "--no-report")
            for i in range(options.loop)
        )
    loop *= CELLS / options.loop
    print(f"load {os.getloadavg()}")
    print(f"{CELLS} cells: one job {one:.1f} s, {cores} jobs {all_cores:.1f} s, a loop {loop:.0f} s")
    print(f"{one / all_cores:.2f} × one job (target {0.9 * cores:.1f}), {loop / all_cores:.1f} × the loop (target 3)")


if __name__ == "__main__":
    main()
