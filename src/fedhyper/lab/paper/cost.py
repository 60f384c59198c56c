"""How long an experiment will take and how much disk it needs, from one batch of each model timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedhyper.lab.config.model import Config
from fedhyper.lab.running.build import cores
from fedhyper.sim.rng import generator

# Examples for training and test, and the shape of one: known without the data.
_DATA: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "digits": (1_437, 360, (1, 8, 8), 10),
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fmnist": (60_000, 10_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "shakespeare": (39_783, 4_767, (80,), 80),
}
_FORWARD = 0.35  # of a training step is the forward pass
_CELL_SECONDS, _START_SECONDS = 0.5, 8.0  # to set a run up; to start a process with torch in it
_CELL_BYTES, _COPIES = 200_000, 11  # logs; model-sized vectors in two checkpoints and the final weights
_BATCH, _TRIES = 32, 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of wall time and bytes of disk."""

    runs: int
    seconds: float
    disk: int


def estimate(configs: Sequence[Config], *, jobs: int | None, device: str) -> Estimate:
    """What these runs cost, ``jobs`` at a time (None: as many as cores); load on the machine is in it."""
    if not configs:
        return Estimate(0, 0.0, 0)
    parallel = cores() if device == "cpu" else 1
    seconds, disk, known = 0.0, 0, dict[str, tuple[float, int]]()
    for config in configs:
        train, test, shape, classes = _DATA[config.task]
        key = repr((config.task, config.model, config.model_options))
        if key not in known:
            known[key] = _time_model(config, shape, classes, device)
        each, parameters = known[key]
        share = (config.subset or train) * config.clients_per_round / config.clients
        evaluations = -(-config.rounds // config.eval_every)
        work = config.rounds * config.local_epochs * share * each + evaluations * test * _FORWARD * each
        seconds += work / parallel + _CELL_SECONDS / min(jobs or parallel, parallel)
        disk += _CELL_BYTES + 4 * _COPIES * parameters
    return Estimate(len(configs), seconds + _START_SECONDS, disk)


def _time_model(config: Config, shape: tuple[int, ...], classes: int, device: str) -> tuple[float, int]:
    """Seconds a training example takes on one thread, the best of three batches; and the model's size."""
    import torch
    from torch.nn.functional import cross_entropy

    from fedhyper.client.vectors import FlatModel
    from fedhyper.sim.models import make_model, parameter_count

    tokens = len(shape) == 1
    model = make_model(config.model, shape, classes, seed=0, tokens=tokens, **config.model_options).to(device)
    size = min(config.batch_size, _BATCH)
    rng = generator(0, "estimate")
    FlatModel(model, channels_last=True)  # as the engine has it, and images in the order in which it reads them
    channels, *rest = shape
    drawn: Any = rng.integers(0, classes, (size, *shape)) if tokens else rng.random((size, *rest, channels), "float32")
    x, y = torch.from_numpy(drawn).to(device), torch.from_numpy(rng.integers(0, classes, size)).to(device)
    x = x if tokens else x.permute(0, 3, 1, 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = float("inf")
    try:
        for _ in range(_TRIES + 1):  # the first batch pays for memory
            started = time.perf_counter()
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()  # waits for a GPU
            best = min(best, time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return best / size, parameter_count(model)
