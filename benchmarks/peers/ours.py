"""fedhyper's own engines, several methods or engines side by side in one process.

python ours.py DIRECTORY ENGINE WORKERS METHOD[,METHOD...]

With more than one method ``round T`` is asked for once for each, in their order: their ratios are then
free of what differs between two processes.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import protocol
import torch

from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.methods import make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation


def simulation(directory: Path, engine: str, workers: int, method: str) -> Simulation:
    """The run that the driver drew the rounds from."""
    settings = json.loads((directory / "work.json").read_text())
    x, y = (torch.from_numpy(np.load(directory / f"train_{part}.npy")) for part in "xy")
    test_x, test_y = (torch.from_numpy(np.load(directory / f"test_{part}.npy")) for part in "xy")
    name = settings["model"]
    task = Task(settings["task"], x, y, test_x, test_y, settings["classes"], name)
    split = np.load(directory / "partition.npz")
    model = make_model("logistic" if name == "digits" else name, task.shape, task.classes, seed=0, tokens=task.tokens)
    return Simulation(
        task=task,
        partition=Partition("given", split["indices"], split["offsets"]),
        model=model,
        method=make_method(method, local_lr=settings["local_lr"], global_lr=1.0),
        norm_cap=0.0,  # the peers have none
        clients_per_round=settings["clients_per_round"],
        local_epochs=settings["local_epochs"],
        local_steps=settings["local_steps"],
        batch_size=settings["batch_size"],
        seed=settings["seed"],
        engine=engine,  # type: ignore[arg-type]
        workers=workers,
    )


def main() -> None:
    """Serve rounds. The simulation draws its clients and batches itself, inside the time: peers are handed theirs."""
    line = protocol.private_stdout()
    directory, engine, workers, methods = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
    runs = [simulation(directory, engine, workers, method) for method in methods]
    turns = itertools.cycle(runs)

    def weights() -> protocol.Floats:
        values: protocol.Floats = torch.cat([w.reshape(-1) for w in runs[0].named_weights().values()]).numpy()
        return values

    for t in protocol.commands(line, weights):
        run = next(turns)
        if run.round != t:
            raise ValueError(f"round {t} was asked for, {run.round} is next")
        started = time.perf_counter()
        run.run_round(evaluate=False)
        print(repr(time.perf_counter() - started), file=line)
    for run in runs:
        run.close()


if __name__ == "__main__":
    main()
