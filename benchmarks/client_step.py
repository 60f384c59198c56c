"""What FedHyper-CL costs a client: a training step with ``HyperSGD`` against ``torch.optim.SGD(foreach=True)``.

A step is zero_grad, forward, backward and the optimizer's step; ``HyperSGD`` is given a delta, so that both inner
products are computed. Contenders take turns in random order; the figure is the median over turns of the ratio to SGD in
the same turn (on flat buffers, which have to be emptied, to SGD on flat buffers), of CPU time on one torch thread
(wall-clock ratios are printed too: they also show the neighbours). Target: at most 1.02.
Inputs are random tensors of the right shape: the time does not depend on what they show.
glibc keeps freed memory for all of them, as the simulator asks it to: left alone, its page faults strike by chance.

    python benchmarks/client_step.py [--quick]
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedhyper.client import HyperSGD
from fedhyper.client.vectors import FlatModel
from fedhyper.sim.engines.threads import keep_freed_memory
from fedhyper.sim.models import make_model

TARGET = 1.02
LR = 1e-3
SGD, SGD_FLAT = "SGD(foreach=True)", "SGD, flat"


class Workload(NamedTuple):
    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    turns: int
    quick_turns: int


class Contender(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    clear: Callable[[], None]

    def step(self, x: Tensor, y: Tensor) -> None:
        self.clear()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def make_workloads() -> list[Workload]:
    draw = torch.Generator().manual_seed(0)

    def labels(n: int, classes: int) -> Tensor:
        return torch.randint(0, classes, (n,), generator=draw)

    cnn = make_model("cnn", (1, 28, 28), 10, seed=0)
    resnet = make_model("resnet18", (3, 32, 32), 10, seed=0)
    lstm = make_model("lstm", (80,), 80, seed=0, tokens=True)
    text = torch.randint(0, 80, (64, 80), generator=draw)
    return [
        Workload("CNN, batch 64", cnn, torch.randn(64, 1, 28, 28, generator=draw), labels(64, 10), 400, 20),
        Workload("LSTM 2×256, batch 64", lstm, text, labels(64, 80), 60, 6),
        Workload(
            "ResNet-18 GroupNorm, batch 32", resnet, torch.randn(32, 3, 32, 32, generator=draw), labels(32, 10), 30, 3
        ),
    ]


def make_contenders(model: nn.Module, bound: float) -> dict[str, Contender]:
    """SGD and HyperSGD in the same loop; then both on flat buffers, where HyperSGD's two gradients take turns."""
    parameters = sum(p.numel() for p in model.parameters())
    delta = 1e-3 * torch.randn(parameters, generator=torch.Generator().manual_seed(1))

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=LR, foreach=True)

    def hyper(model: nn.Module) -> torch.optim.Optimizer:
        return HyperSGD(model.parameters(), lr=LR, bound=bound, local_steps=100, delta=delta)

    models = [copy.deepcopy(model) for _ in range(4)]
    optimizers = [make(own) for make, own in zip((sgd, hyper, sgd, hyper), models, strict=True)]
    clears = [
        optimizers[0].zero_grad,
        optimizers[1].zero_grad,
        FlatModel(models[2]).zero_grad,
        FlatModel(models[3]).swap,
    ]
    names = [SGD, "HyperSGD", SGD_FLAT, "HyperSGD, flat"]
    return {n: Contender(*parts) for n, *parts in zip(names, models, optimizers, clears, strict=True)}


def check_agreement(work: Workload) -> None:
    """With bound=1 the rate stands still, and all must have SGD's weights."""
    contenders = make_contenders(work.model, bound=1.0)
    for _ in range(3):
        for contender in contenders.values():
            contender.step(work.x, work.y)
    sgd, *others = [torch.nn.utils.parameters_to_vector(c.model.parameters()) for c in contenders.values()]
    for name, weights in zip(list(contenders)[1:], others, strict=True):
        assert torch.equal(weights, sgd), f"{work.name}: {name} with bound=1 must have the weights of SGD"


def measure(work: Workload, turns: int) -> dict[str, dict[str, list[float]]]:
    """CPU and wall seconds of every step, by contender."""
    contenders = make_contenders(work.model, bound=10.0)
    seconds = {name: {"cpu": [], "wall": []} for name in contenders}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    for turn in range(turns + 2):
        shuffle(order)
        for name in order:
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name].step(work.x, work.y)
            if turn >= 2:  # the first ones allocate
                seconds[name]["cpu"].append(time.process_time() - cpu)
                seconds[name]["wall"].append(time.perf_counter() - wall)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few turns: shows that it runs, not what it costs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{'':30}{'':20}{'ms a step':>10}{'ratio, CPU':>12}{'ratio, wall':>13}{'turns':>7}")
    for work in make_workloads():
        check_agreement(work)
        seconds = measure(work, work.quick_turns if quick else work.turns)
        for name, times in seconds.items():
            base = seconds[SGD_FLAT if "flat" in name else SGD]
            cpu, wall = (
                statistics.median(a / b for a, b in zip(times[clock], base[clock], strict=True))
                for clock in ("cpu", "wall")
            )
            ms = 1e3 * statistics.median(times["cpu"])
            verdict = "" if times is base else "  ok" if cpu <= TARGET else f"  over {TARGET}"
            print(f"{work.name:30}{name:20}{ms:10.2f}{cpu:12.4f}{wall:13.4f}{len(times['cpu']):7}{verdict}", flush=True)
    print("weights: with bound=1 all have those of SGD, bit for bit, on all three models")


if __name__ == "__main__":
    main()
