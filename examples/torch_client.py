"""FedHyper-CL on the clients, in place of torch.optim.SGD: scikit-learn's digits, ten clients, few classes each.

    python examples/torch_client.py

The two lines that differ are marked. HyperSGD wants to know how many steps it will take (K) and the last global step.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedhyper.client import HyperSGD

ROUNDS, STEPS, CLIENTS, BATCH, LR = 30, 20, 10, 32, 0.01
torch.set_num_threads(1)  # matrices this small are not worth dividing

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
held_out, rest = mixed[:300], mixed[300:]
by_class = rest[labels[rest].argsort(stable=True)]
shards = by_class.chunk(2 * CLIENTS)  # two shards of one or two classes each
clients = [torch.cat([shards[c], shards[c + CLIENTS]]) for c in range(CLIENTS)]


def make_model() -> nn.Module:
    """A small network, the same for everyone."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train_client(model: nn.Module, mine: Tensor, seed: int, hyper: bool, delta: Tensor | None) -> float:
    """Local training in place; the last rate comes back."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    if hyper:
        optimizer = HyperSGD(model.parameters(), lr=LR, bound=10.0, local_steps=STEPS, delta=delta)  # 1
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        batch = mine[torch.randint(len(mine), (BATCH,), generator=generator)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return float(optimizer.param_groups[0]["lr"])  # the live rate


def federated(hyper: bool) -> None:
    """Train, and print how it goes."""
    model = make_model()
    weights, delta = parameters_to_vector(model.parameters()).detach(), None
    for t in range(1, ROUNDS + 1):
        ends, rates = [], []
        for c, mine in enumerate(clients):
            vector_to_parameters(weights.clone(), model.parameters())
            rates.append(train_client(model, mine, 1000 * t + c, hyper, delta))
            ends.append(parameters_to_vector(model.parameters()).detach())
        delta = weights - torch.stack(ends).mean(0)  # before - after; next round's clients get it: 2
        weights = weights - delta
        if t % 10 == 0:
            vector_to_parameters(weights.clone(), model.parameters())
            right = (model(images[held_out]).argmax(1) == labels[held_out]).double().mean()
            name = "HyperSGD" if hyper else "SGD"
            print(
                f"{name:<9} round {t:>3}  accuracy {right:6.1%}  last local rate {min(rates):.3f} to {max(rates):.3f}"
            )


if __name__ == "__main__":
    federated(hyper=False)
    federated(hyper=True)
