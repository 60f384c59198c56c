"""What a second core brings, as a thread and as a process; and what sixty-four would, from the share of the lock.

    python benchmarks/cores.py                             all workloads
    python benchmarks/cores.py softmax40 W1 --rounds 9
    python benchmarks/cores.py --spy py-spy                the lock's share measured, too (pip install py-spy; root)

One process holds a simulation for each way; their rounds alternate. A figure is the median of the paired ratios.
"Apart" is what this machine can do at this time: two processes that know nothing of each other, each with a round of
its own on one thread. Nothing that shares a round can be faster.

Prediction, a closed queue: n clients at work take turns with what only one can do at a time. For threads that is
Python's lock, held for a share s of a step; for processes the caller, who adds up replies, busy for a share p. Without
waiting n times as fast, with waiting at most 1 / s (1 / p). Handing the lock over is not in s: threads are slower than
predicted, and the more so the more they wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from workloads import WORKLOADS, Workload

WAYS = (("threads", 1), ("threads", 2), ("processes", 2))
TWO = ("threads 2", "processes 2", "apart 2")
NAMES = ("softmax40", "W1", "cnn10", "lstm", "resnet")
CORES = (2, 4, 8, 16, 32, 64)
WARM = 1
Row = dict[str, Any]


def speed(cores: int, share: float) -> float:
    """How many times as fast ``cores`` are as one when a share of the work is done one at a time (exact for a closed
    queue with exponential times; 1 / share at most)."""
    queue, throughput = 0.0, 0.0
    for n in range(1, cores + 1):
        waiting = share * (1 + queue)
        throughput = n / (1 - share + waiting)
        queue = throughput * waiting
    return throughput


def simulations(workload: Workload, ways: tuple[tuple[str, int], ...] = WAYS) -> list[Any]:
    """The same run, once for each way."""
    from fedhyper.sim.data.partition import make_partition
    from fedhyper.sim.data.tasks import load_task
    from fedhyper.sim.methods import make_method
    from fedhyper.sim.models import make_model
    from fedhyper.sim.simulation import Simulation

    task = load_task(workload.task)
    partition = make_partition(workload.kind, task.labels, workload.clients, seed=0, concentration=0.5)
    return [
        Simulation(
            task=task,
            partition=partition,
            model=make_model(workload.model, task.shape, task.classes, seed=0, tokens=task.tokens),
            method=make_method("fedavg", local_lr=workload.local_lr, global_lr=1.0),
            clients_per_round=workload.clients_per_round,
            local_epochs=workload.local_epochs,
            local_steps=workload.local_steps,
            batch_size=workload.batch_size,
            seed=0,
            engine=way,  # type: ignore[arg-type]
            workers=workers,
        )
        for way, workers in ways
    ]


class Beside:
    """A process of its own that does a round on one thread when told to."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, __file__, name, "--beside"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.wait()

    def begin(self) -> None:
        """Do a round."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")

    def wait(self) -> None:
        """Until it is done."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(name: str) -> None:
    """What ``Beside`` runs."""
    (run,) = simulations(WORKLOADS[name], WAYS[:1])
    print(flush=True)
    for _ in sys.stdin:
        run.run_round(evaluate=False)
        print(flush=True)
    run.close()


def measure(name: str, rounds: int, spy: str = "") -> Row:
    """Seconds and ratios of one workload; ``apart`` counts as twice as fast when nothing is slowed down."""
    runs, beside = simulations(WORKLOADS[name]), Beside(name)
    wall, cpu = np.zeros((4, WARM + rounds)), np.zeros((4, WARM + rounds))
    (alone,) = simulations(WORKLOADS[name], WAYS[:1])
    for t in range(WARM + rounds):
        for i in [(t + k) % 4 for k in range(4)]:
            began, began_cpu = time.perf_counter(), time.process_time()
            if i == 3:
                beside.begin()
            (alone if i == 3 else runs[i]).run_round(evaluate=False)
            wall[i, t], cpu[i, t] = time.perf_counter() - began, time.process_time() - began_cpu
            if i == 3:
                beside.wait()
    beside.close()
    assert len({run.weights_sha256() for run in [*runs, alone]}) == 1
    wall, cpu = wall[:, WARM:], cpu[:, WARM:]
    wall[3] /= 2
    row: Row = {"name": name, "seconds": float(np.median(wall[0])), "cpu_seconds": float(np.median(cpu[0]))}
    for way, own in zip(TWO, wall[1:], strict=True):
        row[way] = [float(q) for q in np.quantile(wall[0] / own, (0.5, 0.25, 0.75))]
        row[way].append(float(wall[0].min() / own.min()))
    row["caller"] = float(np.median(cpu[2] / cpu[0]))
    row["trained_by"] = simulations(WORKLOADS[name], (("fast", 2),))[0].trained_by
    if spy:
        row["lock"] = lock(spy, runs[0])
    for run in [*runs, alone]:
        run.close()
    return row


def lock(spy: str, run: Any, seconds: int = 6) -> float:
    """The share of samples in which the one worker holds the lock, among those in which it works."""
    counts = []
    for flags in ([], ["--gil"]):
        with tempfile.NamedTemporaryFile("r", suffix=".raw") as out:
            command = [spy, "record", "--nonblocking", "-r", "500", "-d", str(seconds), *flags]
            command += ["-f", "raw", "-o", out.name, "-p", str(os.getpid())]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None:
                run.run_round(evaluate=False)
            counts.append(sum(int(line.rsplit(" ", 1)[1]) for line in out.read().splitlines()))
    return counts[1] / counts[0]


def show(row: Row) -> None:
    """The figures of a workload, and what follows from them for more cores."""
    parts = [f"{way} {row[way][0]:.2f} × ({row[way][1]:.2f}–{row[way][2]:.2f}; best {row[way][3]:.2f})" for way in TWO]
    print(f"{row['name']:10} {row['seconds']:.3f} s on one ({row['cpu_seconds']:.3f} of CPU), {', '.join(parts)}")
    print(f"           chosen: {row['trained_by']}")
    for what, key in (("threads", "lock"), ("processes", "caller")):
        if key in row:
            ahead = "  ".join(f"{n}: {speed(n, row[key]):.1f}" for n in CORES)
            print(f"           {what:9} at {row[key]:.1%}, cores: times as fast   {ahead}", flush=True)


def table(names: Sequence[str] = NAMES, rounds: int = 7, spy: str = "") -> list[Row]:
    """All of it."""
    rows = []
    for name in names:
        rows.append(measure(name, rounds, spy))
        show(rows[-1])
    return rows


def main() -> None:
    """Measure, print, and predict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds a way")
    parser.add_argument("--spy", default="", help="where py-spy is")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        serve(options.workloads[0])
        return
    print(f"load {os.getloadavg()}")
    rows = table(options.workloads, options.rounds, options.spy)
    print(f"load {os.getloadavg()}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
