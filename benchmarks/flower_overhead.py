"""What the wrapper adds to a round on the server, in processor time and in memory: 10 replies.

    python benchmarks/flower_overhead.py [--million 11] [--repeats 5]        milliseconds of aggregate_train
    python benchmarks/flower_overhead.py --memory [--million 11]             models held between rounds, and at most

Strategies take turns, so that other work on the machine, and its caches, meet all of them alike; the fastest turn of
each counts, and beside it the median. Processor time and one thread (set OMP_NUM_THREADS=1): a clock would measure the
machine. "stock" clients answer as Flower's quickstart does, "reporting" ones with train_reply's metrics. "settled" is
auto with momentum and a mean of rounds. The goals: auto with stock clients at most 1.35 × FedAvg, with reporting ones
1.2 ×, and at most two models more in memory.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity  # private: Message() works only inside a run

from fedhyper.flower import FedHyper

CLIENTS = 10
CASES: dict[str, tuple[Callable[[], Strategy], str | None, int, bool]] = {  # inner, schedule, rounds, reporting
    "FedAvg": (FedAvg, None, 3, False),
    "FedHyper(FedAvg), constant": (FedAvg, "constant", 3, False),
    "FedHyper(FedAvg), g": (FedAvg, "g", 3, False),
    "FedHyper(FedAvg), auto, stock": (FedAvg, "auto", 3, False),
    "FedHyper(FedAvg), auto, reporting": (FedAvg, "auto", 3, True),
    "FedHyper(FedAvg), auto, settled": (FedAvg, "auto", 6, False),
    "FedAdam": (FedAdam, None, 3, False),
    "FedHyper(FedAdam), g": (FedAdam, "g", 3, False),
}
TIMED = [name for name in CASES if "FedAdam" not in name]


class _Grid:
    """Ten nodes; nothing is sent."""

    def get_node_ids(self) -> list[int]:
        return list(range(2, 2 + CLIENTS))


def _start(million: int) -> dict[str, Any]:
    """Arrays of 2.25 million numbers, ResNet-18's largest."""
    rng = np.random.default_rng(0)
    sizes = [2_250_000] * (million * 1_000_000 // 2_250_000) + [million * 1_000_000 % 2_250_000 or 10]
    return {f"layer{i}": 0.05 * rng.standard_normal(size, np.float32) for i, size in enumerate(sizes)}


def _arrays(start: dict[str, Any], node: int) -> ArrayRecord:
    """As they come from the wire: bytes."""
    rng = np.random.default_rng(node)
    return ArrayRecord({k: Array(v + 0.01 * rng.standard_normal(v.shape, np.float32)) for k, v in start.items()})


def _replies(records: list[ArrayRecord], t: int, *, reporting: bool) -> list[Message]:
    messages = []
    for node, record in enumerate(records):
        metrics = {"num-examples": 100 + node, "train_loss": 1.0 / t}
        if reporting:
            metrics |= {"fedhyper.loss": 1.0 / t, "fedhyper.sq-norm": 1.0}
        content = RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})
        messages.append(Message(content, reply_to=Message(RecordDict(), node + 2, "train")))
    return messages


def _prepared(name: str, record: ArrayRecord, replies: list[ArrayRecord]) -> tuple[Strategy, list[Message], int]:
    """A strategy at the end of a round, and the replies to it: there is a Δ to compare with."""
    make, schedule, rounds, reporting = CASES[name]
    strategy = make() if schedule is None else FedHyper(make(), schedule)
    for t in range(1, rounds + 1):
        strategy.configure_train(t, record, ConfigRecord(), _Grid())  # type: ignore[arg-type]
        if t < rounds:
            record = strategy.aggregate_train(t, _replies(replies, t, reporting=reporting))[0] or record
    return strategy, _replies(replies, rounds, reporting=reporting), rounds


def times(million: int, repeats: int, names: list[str]) -> None:
    start = _start(million)
    record = ArrayRecord({k: Array(v) for k, v in start.items()})
    replies = [_arrays(start, node) for node in range(CLIENTS)]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            strategy, messages, t = _prepared(name, record, replies)
            began = time.process_time()
            strategy.aggregate_train(t, messages)
            found[name].append(1e3 * (time.process_time() - began))
            del strategy, messages
    print(f"{million} million parameters, {CLIENTS} replies, {repeats} turns each, processor time of aggregate_train")
    print(f"{'':34s} {'fastest':>9s} {'median':>9s}  of FedAvg or FedAdam")
    for name, values in found.items():
        base = found["FedAdam" if "FedAdam" in name else "FedAvg"]
        ratios = f"{min(values) / min(base):.2f} × ({median(values) / median(base):.2f} ×)"
        print(f"{name:34s} {min(values):6.0f} ms {median(values):6.0f} ms  {ratios}")


def _resident() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _pages()


def _pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_of(name: str, million: int) -> tuple[float, float]:
    """Models held while clients train, beside the one that was there before; and at most during a round."""
    start = _start(million)
    record = ArrayRecord({k: Array(v) for k, v in start.items()})
    make, schedule, _, reporting = CASES[name]
    strategy, model = make() if schedule is None else FedHyper(make(), schedule), 4e6 * million
    held = peak = 0.0
    begin = _resident()
    for t in range(1, 7):
        strategy.configure_train(t, record, ConfigRecord(), _Grid())  # type: ignore[arg-type]
        held = (_resident() - begin) / model  # while clients train
        messages = _replies([_arrays(start, node) for node in range(CLIENTS)], t, reporting=reporting)
        before, seen, done = _resident(), [0], threading.Event()

        def watch(seen: list[int] = seen, done: threading.Event = done) -> None:
            while not done.wait(0.002):
                seen[0] = max(seen[0], _pages())

        watcher = threading.Thread(target=watch)
        watcher.start()
        record = strategy.aggregate_train(t, messages)[0] or record
        done.set()
        watcher.join()
        peak = (seen[0] - before) / model
        strategy.configure_evaluate(t, record, ConfigRecord(), _Grid())  # type: ignore[arg-type]
        del messages
    return held, peak


def memory(million: int) -> None:
    print(
        f"{million} million parameters: models held between rounds, and at most on top during a round, replies left out"
    )
    for name in CASES:
        command = [sys.executable, __file__, "--million", str(million), "--memory", "--only", name]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--adam", action="store_true", help="FedAdam, too")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    if arguments.memory and arguments.only:
        held, peak = memory_of(arguments.only, arguments.million)
        print(f"{arguments.only:34s} {held:5.1f} {peak:5.1f}")
    elif arguments.memory:
        memory(arguments.million)
    else:
        times(arguments.million, arguments.repeats, [*CASES] if arguments.adam else TIMED)


if __name__ == "__main__":
    main()
