"""Which loss a client should report beside its mean training loss, where few clients answer a round.

    python -m benchmarks.flower_losses        # from the project's root; the digits app of tests/flower_apps, 20 rounds

nothing more, its first batch's before it trains, or that over all its data before it trains: accuracy in percent over
five orders of nodes, for three and five nodes, IID and Dirichlet 0.3.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from torch.nn.functional import cross_entropy

from fedhyper.flower import FedHyper
from tests.flower_apps import task
from tests.flower_apps.suite import PYTORCH, Train, run
from tests.flower_support import LocalGrid

ROUNDS, ORDERS = 20, 5


@cache
def parts(nodes: int, concentration: float | None) -> list[np.ndarray]:
    """Whose images are whose; None: every n-th."""
    (_, y), _ = task.load_all()
    if concentration is None:
        return [np.arange(len(y))[part::nodes] for part in range(nodes)]
    rng = np.random.default_rng(0)
    own: list[list[np.ndarray]] = [[] for _ in range(nodes)]
    for label in range(10):
        of_it = rng.permutation(np.flatnonzero(y.numpy() == label))
        cuts = np.cumsum(rng.dirichlet(np.full(nodes, concentration)))[:-1] * len(of_it)
        for some, piece in zip(own, np.split(of_it, cuts.astype(int)), strict=True):
            some.append(piece)
    return [np.concatenate(some) for some in own]


def client(reports: str, concentration: float | None) -> Train:
    def train(message: Message, context: Context) -> Message:
        part, nodes = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
        rng = np.random.default_rng((int(message.content["config"]["server-round"]), part))
        order = torch.from_numpy(rng.permutation(parts(nodes, concentration)[part]))
        x, y = (tensor[order] for tensor in task.load_all()[0])
        net = task.mlp()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        metrics = {"num-examples": len(x)}
        if reports != "nothing more":
            seen = slice(16) if reports == "first batch" else slice(None)
            with torch.no_grad():
                metrics["fedhyper.loss"] = cross_entropy(net(x[seen]), y[seen]).item()
        optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
        mean = task.train(net, (x, y), optimizer)
        return task.answer(message, ArrayRecord(net.state_dict()), train_loss=mean, **metrics)

    return train


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for reports in ("nothing more", "first batch", "all its data"):
        everything = []
        for nodes in (3, 5):
            for concentration in (None, 0.3):
                app, found = replace(PYTORCH, train=client(reports, concentration), rounds=ROUNDS), []
                for order in range(ORDERS):
                    random.seed(order)
                    score, _ = run(app, FedHyper(app.strategy()), LocalGrid(app.client(), nodes, shuffle=order))
                    found.append(round(100 * score, 1))
                print(reports, nodes, "nodes", concentration or "IID", found, flush=True)
                everything += found
        print(reports, f"mean {fmean(everything):.1f}, worst {min(everything)}", flush=True)


if __name__ == "__main__":
    main()
