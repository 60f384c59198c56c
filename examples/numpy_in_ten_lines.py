"""Ten clients fit a line together, from rates that are far too small, right, and far too large. NumPy only.

    python examples/numpy_in_ten_lines.py

The clients hold different inputs and different lines (heterogeneous data), so their updates disagree about the end,
not about the way there. Shown is the loss over all data after 30 rounds, relative to the best possible fit (1.00).
"""

from __future__ import annotations

import numpy as np

from fedhyper import Constant, FedHyperG, FedHyperSL, Pair, Server, auto
from fedhyper.plan import Plan

ROUNDS, STEPS, CLIENTS, SIZE = 30, 5, 10, 20
rng = np.random.default_rng(0)
shared = rng.normal(size=SIZE)
inputs = [rng.normal(scale=rng.uniform(0.5, 2.0), size=(50, SIZE)) for _ in range(CLIENTS)]
targets = [x @ (shared + 0.3 * rng.normal(size=SIZE)) + 0.1 * rng.normal(size=50) for x in inputs]
data = list(zip(inputs, targets, strict=True))


def loss_of(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """One client's mean squared error."""
    return float(np.mean((x @ w - y) ** 2))


def loss(w: np.ndarray) -> float:
    """Mean squared error over everybody's data."""
    return float(np.mean([loss_of(w, x, y) for x, y in data]))


def local_training(w: np.ndarray, x: np.ndarray, y: np.ndarray, lr: float) -> tuple[np.ndarray, list[float]]:
    """One client: a few steps of gradient descent on its own data, and the loss before each."""
    losses = []
    for _ in range(STEPS):
        losses.append(loss_of(w, x, y))
        w = w - lr * 2 * x.T @ (x @ w - y) / len(y)
    return w, losses


def train(plan: Plan) -> float:
    """Federated training: these are the ten lines."""
    server = Server(np.zeros(SIZE), plan)
    for _ in range(ROUNDS):
        sent, rates = server.weights, server.rates(len(data))
        replies = [local_training(sent, x, y, lr) for (x, y), lr in zip(data, rates, strict=True)]
        updates, losses = [sent - w for w, _ in replies], [losses for _, losses in replies]  # before - after
        server.step(updates, loss=[first for first, *_ in losses], train_loss=[np.mean(one) for one in losses])
    return loss(server.averaged)


def main() -> None:
    """Print the table."""
    best = loss(np.linalg.lstsq(np.concatenate(inputs), np.concatenate(targets), rcond=None)[0])
    print(f"{'local rate':>10}{'FedAvg':>12}{'FedHyper-G':>12}{'FedHyper-SL':>13}{'auto':>10}")
    for lr in (0.0001, 0.001, 0.01, 0.1, 1.0):
        plans = (
            Pair(local_rule=Constant(lr=lr)),
            Pair(global_rule=FedHyperG(), local_rule=Constant(lr=lr)),
            Pair(local_rule=FedHyperSL(lr=lr)),
            auto(local_lr=lr),
        )
        with np.errstate(all="ignore"):  # a rate of 1 overflows; the guard notices
            ends = [train(plan) / best for plan in plans]
        cells = [f"{end:.2f}" if end < 1000 else "diverged" for end in ends]
        print(f"{lr:>10g}{cells[0]:>12}{cells[1]:>12}{cells[2]:>13}{cells[3]:>10}")


if __name__ == "__main__":
    main()
