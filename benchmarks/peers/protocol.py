"""What the driver and a contender say to each other, and the files that hold the work. NumPy only: every peer has it.

The driver writes a directory: ``work.json`` (model, rate), ``train_x.npy``, ``train_y.npy``, ``weights.npy`` (w_0, one
flat float32 vector in the order of torch's parameters) and ``round_T.npz``: who trains in round T and on which batches.
A contender answers on its standard output, one line for each line that it reads::

    round T         does round T                                    -> seconds
    weights FILE    saves its weights, flat, in the same order      -> ok
    memory          the most memory it and its children have held   -> bytes
    quit
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class Client(NamedTuple):
    """One client's work in one round."""

    number: int
    examples: int
    batches: list[Indices]


class Work:
    """The files of one workload."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        settings = json.loads((self.directory / "work.json").read_text())
        self.model: str = settings["model"]
        self.local_lr: float = settings["local_lr"]
        self.batch_size: int = settings["batch_size"]
        self.clients: int = settings["clients"]
        self.clients_per_round: int = settings["clients_per_round"]

    def train(self) -> tuple[Floats, Indices]:
        """All training inputs and targets."""
        return np.load(self.directory / "train_x.npy"), np.load(self.directory / "train_y.npy")

    def weights(self) -> Floats:
        """w_0."""
        return np.load(self.directory / "weights.npy")

    def round(self, t: int) -> list[Client]:
        """Who trains in round ``t``, largest first, and on what."""
        with np.load(self.directory / f"round_{t}.npz") as file:
            numbers, examples, steps = file["numbers"], file["examples"], file["steps"]
            batches = np.split(file["indices"], np.cumsum(file["sizes"])[:-1])
        ends = np.cumsum(steps)
        return [
            Client(int(n), int(e), batches[end - k : end])
            for n, e, k, end in zip(numbers, examples, steps, ends, strict=True)
        ]


def save_round(directory: Path, t: int, clients: list[Client]) -> None:
    """What ``Work.round`` reads."""
    batches = [batch for client in clients for batch in client.batches]
    np.savez(
        directory / f"round_{t}.npz",
        numbers=np.array([client.number for client in clients]),
        examples=np.array([client.examples for client in clients]),
        steps=np.array([len(client.batches) for client in clients]),
        sizes=np.array([len(batch) for batch in batches]),
        indices=np.concatenate(batches),
    )


def private_stdout() -> TextIO:
    """The line to the driver; whatever a library prints goes to standard error from here on."""
    line = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return line


def commands(line: TextIO, weights: Callable[[], Floats]) -> Iterator[int]:
    """Answer everything but ``round``, and yield the rounds that are asked for."""
    print("ready", file=line)
    for text in sys.stdin:
        command, _, argument = text.strip().partition(" ")
        if command == "round":
            yield int(argument)
        elif command == "weights":
            np.save(argument, np.asarray(weights(), np.float32))
            print("ok", file=line)
        elif command == "memory":
            children = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            print(max(peak_bytes(), children), file=line)
        else:
            return


def peak_bytes() -> int:
    """The most memory this process has had. Not ru_maxrss, which a process inherits from the one that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [peak] = [text.split()[1] for text in status.read_text().splitlines() if text.startswith("VmHWM")]
    return 1024 * int(peak)


def serve(line: TextIO, work: Work, run: Callable[[list[Client]], Any], weights: Callable[[], Floats]) -> None:
    """Do rounds until the driver has enough; reading a round's indices is not timed."""
    for t in commands(line, weights):
        clients = work.round(t)
        started = time.perf_counter()
        run(clients)
        print(repr(time.perf_counter() - started), file=line)
