"""Which engine trains the clients: stacks or single clients, in threads or in processes. All give the same bits.

A thread holds the interpreter's lock for a share s of a local step: its Python, but not the arithmetic inside torch.
n threads are at most 1 / s times as fast as one, and in truth less: a step hands the lock over dozens of times, and who
waits for it is woken late. Measured on two cores, two threads lose nothing at n · s = 0.08, a third at 0.2, and all of
the second core at 0.4 (benchmarks/README.md). Processes have a lock each. Threads need no start and no second torch in
memory. Hence **processes where n · s > 1/8, else threads**; threads on a GPU, which does the work, and for one worker.

    stacks     s = 0.2, for softmax; always too much
    otherwise  s = held / (seconds of a step), with held = 0.3 ms and 0.01 ms a module: measured 0.3 ms on the CNN,
               0.6 on the LSTM, 0.9 on ResNet-18. A step takes three times a forward pass, which is tried out.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedhyper.client.vectors import FlatModel, channels_last
from fedhyper.sim.data.objectives import CLASSES
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import Divisible, Engine
from fedhyper.sim.engines.processes import PATIENCE, ProcessEngine
from fedhyper.sim.engines.sequential import SequentialEngine
from fedhyper.sim.engines.stacked import StackedEngine
from fedhyper.sim.engines.threads import ThreadEngine
from fedhyper.sim.local.step import LocalStep
from fedhyper.sim.methods import Local
from fedhyper.sim.models import linear_layers
from fedhyper.sim.registry import LOCALS

Kind = Literal["fast", "threads", "processes", "sequential"]

LIMIT = 1 / 8  # of n · s; raising it keeps threads for longer
STACK_SHARE = 0.2
HELD, HELD_MODULE = 3e-4, 1e-5  # seconds a step, and a module without children more
TRIAL = 8  # examples
SLOW = 0.05  # seconds


@dataclass(frozen=True)
class Recipe:
    """How to make an engine, here or in a worker process; there it only trains.

    step  the class of the client optimizer: where it is unpickled, the module that registers it is imported
    """

    stacked: bool
    model: nn.Module
    task: Task
    local: Local
    device: str
    dtype: torch.dtype
    workers: int
    step: type[LocalStep]

    def __call__(self) -> Divisible:
        """The engine."""
        LOCALS.get(self.local.kind)  # an unknown one is refused here, not in the middle of a round
        if self.stacked:
            return StackedEngine(
                model=self.model, task=self.task, local=self.local, workers=self.workers, device=self.device
            )
        return ThreadEngine(
            model=self.model,
            task=self.task,
            local=self.local,
            workers=self.workers,
            device=self.device,
            dtype=self.dtype,
        )

    def for_worker(self) -> Recipe:
        """The same with one worker, without a test set and without a score: that may be a function in a function."""
        task = self.task
        objective = dataclasses.replace(task.objective, score=task.objective.loss)
        x, y = task.train_x[:1], task.train_y[:1]
        return dataclasses.replace(
            self, task=dataclasses.replace(task, test_x=x, test_y=y, groups=None, objective=objective), workers=1
        )


class Chosen(NamedTuple):
    """An engine, and in a line what trains and why."""

    engine: Engine
    why: str


def make_engine(
    kind: Kind,
    *,
    model: nn.Module,
    task: Task,
    local: Local,
    batch_size: int,
    workers: int,
    device: str,
    dtype: torch.dtype,
    augmented: bool = False,
) -> Chosen:
    """The slow twin; threads or processes, as told; or what is faster.

    ``augmented``: whether tasks change their batches by chance; not on a stack, where images lie flat.
    """
    if kind == "sequential":
        engine = SequentialEngine(model=model, task=task, local=local, device=device, dtype=dtype)
        return Chosen(engine, "one client after the other, with torch's own optimizers")
    plain = dtype == torch.float32 and not augmented
    stacked = plain and task.objective is CLASSES and linear_layers(model) is not None
    recipe = Recipe(stacked, model, task, local, device, dtype, workers, LOCALS.get(local.kind).fast)
    what = "several clients at once" if stacked else "clients"
    if workers == 1 and kind != "processes":
        return Chosen(recipe(), f"{what}, one after the other: one worker")
    if device != "cpu":
        return Chosen(recipe(), f"{what} in {workers} threads: {device} does the work")
    share = STACK_SHARE if stacked else lock_share(model, task.train_x, batch_size)
    why = f"Python's lock is held for {share:.1%} of a step"
    if kind == "threads" or (kind == "fast" and workers * share <= LIMIT):
        return Chosen(recipe(), f"{what} in {workers} threads: {why}")
    # stacks in threads are slower than one after the other
    own = dataclasses.replace(recipe, workers=1) if stacked else recipe
    return Chosen(
        ProcessEngine(own(), recipe.for_worker(), workers, patience=0.0 if kind == "processes" else PATIENCE),
        f"{what} in {workers} processes: {why}",
    )


@torch.no_grad()
def lock_share(model: nn.Module, inputs: Tensor, batch_size: int) -> float:
    """The share s of a local step for which a thread holds the lock; 0 to 1, from a short trial.

    More modules raise it; larger inputs, layers and batches lower it.
    """
    leaves = sum(1 for module in model.modules() if not any(True for _ in module.children()))
    held = HELD + HELD_MODULE * leaves
    trial = copy.deepcopy(model).eval()  # so that no statistics move
    FlatModel(trial, channels_last=True)
    fastest = {1: math.inf, 1 + TRIAL: math.inf}
    for count in (1, *fastest, *fastest, *fastest):
        examples = channels_last(inputs[:count]) if inputs.ndim == 4 else inputs[:count]
        started = time.thread_time()
        trial(examples)
        seconds = time.thread_time() - started
        if seconds > SLOW:  # a pass so long is arithmetic
            return held / (held + 3 * batch_size * seconds / count)
        fastest[count] = min(fastest[count], seconds)
    step = 3 * batch_size * max(0.0, fastest[1 + TRIAL] - fastest[1]) / TRIAL
    return held / (held + step)
