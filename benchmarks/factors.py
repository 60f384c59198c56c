"""A sketch, no engine: how fast ``mlp20`` could be if no client's weights or update were ever written out.

    python benchmarks/factors.py

All clients start from one W. A local step adds −β Gᵀ X to it, G and X with as many rows as the batch, so that a forward
pass after it is X' Wᵀ − β (X' Xᵀ) G: the first product is one for all clients, the others are small. The mean update is
Σ p_m Gᵀ X, one product again. Compared with the naive loop, on one thread, CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

CLIENTS, STEPS, BATCH, INPUTS, HIDDEN, CLASSES, RATE = 100, 2, 10, 784, 200, 10, 0.01


def factored(w: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """The mean update of all clients; ``w`` is weight, bias, weight, bias, ``x`` [step, client, batch, inputs]."""
    shared = (x.reshape(-1, INPUTS) @ w[0].T).view(STEPS, CLIENTS, BATCH, HIDDEN)
    own = [v.expand(CLIENTS, *v.shape).clone() for v in w[1:]]
    gradients: list[Tensor] = []
    for s in range(STEPS):
        z = shared[s] + own[0].unsqueeze(1)
        for before, gradient in enumerate(gradients):
            z -= RATE * torch.bmm(torch.bmm(x[s], x[before].transpose(1, 2)), gradient)
        a = z.relu()
        p = (torch.bmm(a, own[1].transpose(1, 2)) + own[2].unsqueeze(1)).softmax(2)
        p.scatter_add_(2, y[s].unsqueeze(2), -torch.ones(CLIENTS, BATCH, 1))
        p /= BATCH
        gradients.append(torch.bmm(p, own[1]) * (z > 0))
        for v, step in zip(own, (gradients[-1].sum(1), torch.bmm(p.transpose(1, 2), a), p.sum(1)), strict=True):
            v -= RATE * step
    first = RATE / CLIENTS * (torch.stack(gradients).view(-1, HIDDEN).T @ x.reshape(-1, INPUTS))
    return [first, *(v - mine.mean(0) for v, mine in zip(w[1:], own, strict=True))]


def naive(w: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """The same, a client after the other."""
    total = [torch.zeros_like(v) for v in w]
    for m in range(CLIENTS):
        mine = [v.clone().requires_grad_() for v in w]
        optimizer = torch.optim.SGD(mine, lr=RATE)
        for s in range(STEPS):
            optimizer.zero_grad()
            hidden = linear(x[s, m], mine[0], mine[1]).relu()
            cross_entropy(linear(hidden, mine[2], mine[3]), y[s, m]).backward()
            optimizer.step()
        for sum_, v, own in zip(total, w, mine, strict=True):
            sum_ += (v - own.detach()) / CLIENTS
    return total


def main() -> None:
    """Compare what they give, then how long they take, in turns."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    w = [torch.randn(HIDDEN, INPUTS) * 0.03, torch.zeros(HIDDEN), torch.randn(CLASSES, HIDDEN) * 0.05]
    w.append(torch.zeros(CLASSES))
    x = torch.rand(STEPS, CLIENTS, BATCH, INPUTS)
    y = torch.randint(0, CLASSES, (STEPS, CLIENTS, BATCH))
    contenders: list[Callable[[list[Tensor], Tensor, Tensor], list[Tensor]]] = [factored, naive]
    one, other = (contender(w, x, y) for contender in contenders)
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(one, other, strict=True))
    print(f"largest difference, of the largest update: {apart:.0e}")
    times: list[list[float]] = [[], []]
    for _ in range(15):
        for contender, taken in zip(contenders, times, strict=True):
            started = time.process_time()
            contender(w, x, y)
            taken.append(1000 * (time.process_time() - started))
    middle = [sorted(taken)[len(taken) // 2] for taken in times]
    print(f"ms of CPU a round: factored {middle[0]:.0f}, naive {middle[1]:.0f}: {middle[1] / middle[0]:.1f} ×")


if __name__ == "__main__":
    main()
