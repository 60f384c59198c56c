"""From a config to its data, its partition and its simulation; and what a run depends on besides."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedhyper
from fedhyper.errors import UserError, printable
from fedhyper.lab.config.model import Config
from fedhyper.lab.plugins import imported
from fedhyper.lab.running.rule import rule
from fedhyper.privacy import Privacy

if TYPE_CHECKING:
    from fedhyper.sim.data.partition import Partition
    from fedhyper.sim.data.tasks import Task
    from fedhyper.sim.simulation import Simulation


@functools.lru_cache(maxsize=1)  # the cells of a sweep share their data
def load_task(name: str, subset: int) -> Task:
    """The data of a task; those of the last one asked for are kept. ``subset`` 0 means all of them."""
    from fedhyper.sim.data import tasks

    return tasks.load_task(name, subset=subset or None)


def make_partition(config: Config) -> tuple[Task, Partition]:
    """The data of an experiment and who holds what."""
    from fedhyper.sim.data.partition import make_partition as split

    task = load_task(config.task, config.subset)
    count = held_out(config, task)
    groups = task.groups
    if count:
        task = task.hold_out(count, config.seed)
        groups = task.groups and task.groups[:-1]
    partition = split(
        config.partition.kind,
        task.labels[: len(task.train_x) - count],
        config.clients,
        seed=config.seed,
        groups=groups,
        **config.partition.model_dump(exclude={"kind"}),
    )
    return task, partition


def held_out(config: Config, task: Task) -> int:
    """How many training examples, the last ones, no client gets: the server's own, to decide when to stop."""
    return max(1, round(config.validation * len(task.train_x))) if config.validation else 0


def validation_set(config: Config, task: Task) -> Partition:
    """The examples that are held out, as a partition with one client."""
    import numpy as np

    from fedhyper.sim.data.partition import Partition

    n = len(task.train_x)
    count = held_out(config, task)
    return Partition("validation", np.arange(n - count, n), np.array([0, count]))


def make_simulation(config: Config, *, workers: int | None = None, device: str = "cpu") -> Simulation:
    """The simulation a config describes, before its first round. ``workers`` None means every core."""
    if "torch" not in sys.modules:
        from fedhyper.sim.data.files import read_ahead

        read_ahead(config.task)
    check_device(device)
    import torch

    from fedhyper.sim.models import make_model
    from fedhyper.sim.simulation import Simulation

    task, partition = make_partition(config)
    name, options = config.model or task.model, config.model_options
    model = make_model(name, task.shape, task.classes, seed=config.seed, tokens=task.tokens, **options)
    return Simulation(
        task=task,
        partition=partition,
        model=model,
        method=config.make_method(),
        clients_per_round=config.clients_per_round,
        local_epochs=config.local_epochs,
        local_steps=config.local_steps,
        batch_size=config.batch_size,
        rounds=config.rounds,
        warmup_rounds=config.warmup_rounds,
        augment=config.augment,
        dtype=getattr(torch, config.dtype),
        seed=config.seed,
        weighting=config.weighting,
        sampling=config.sampling,
        carry=config.carry,
        norm_cap=config.norm_cap,
        aggregate=config.aggregate,
        privacy=None if config.privacy is None else Privacy(**config.privacy.model_dump()),
        engine=config.engine,
        workers=workers or cores(),
        device=device,
    )


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    if name == "cpu":
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {printable(name)} is not known; use cpu, cuda or cuda:1") from None
    if device.type != "cuda" or not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {printable(name)} is not there; use cpu")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """What a run depends on besides its config: versions and the machine."""
    return {
        "fedhyper": fedhyper.__version__,
        "python": platform.python_version(),
        "torch": library_version("torch"),
        "numpy": library_version("numpy"),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "git": _commit(),
        "rule": rule(),
        "imports": imported(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def library_version(name: str) -> str | None:
    """The version of a library if it was imported."""
    module = sys.modules.get(name)
    return str(module.__version__) if module else None


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout this package runs from; None when it was installed as a wheel."""
    root = Path(fedhyper.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
