"""The fastest loop we could write by hand for W1's CNN: what the engine has to come close to.

One flat vector for the weights and one for the gradient, true channels-last in data and weights, pool before ReLU, two
Python threads with one torch thread each, the largest client first. Nothing is checked, recorded or configurable.

python tuned.py DIRECTORY THREADS
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import protocol
import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ((16, 1, 5, 5), (16,), (32, 16, 5, 5), (32,), (10, 1568), (10,))


def views(flat: Tensor) -> list[Tensor]:
    """The layers' weights in a flat vector, convolutions with the strides of O, H, W, C."""
    parts, start = [], 0
    for shape in SHAPES:
        size = torch.Size(shape).numel()
        if len(shape) == 4:
            _, channels, height, width = shape
            stride = (channels * height * width, 1, width * channels, channels)
            parts.append(flat.as_strided(shape, stride, start))
        else:
            parts.append(flat[start : start + size].view(shape))
        start += size
    return parts


class Worker:
    """Weights, gradient, and the network written out."""

    def __init__(self, size: int) -> None:
        self.weights, self.grad = torch.zeros(size), torch.zeros(size)
        self.parameters = [view.requires_grad_() for view in views(self.weights)]
        for parameter, grad in zip(self.parameters, views(self.grad), strict=True):
            parameter.grad = grad

    def train(self, start: Tensor, x: Tensor, y: Tensor, client: protocol.Client, lr: float) -> Tensor:
        with torch.no_grad():
            self.weights.copy_(start)
        w1, b1, w2, b2, w3, b3 = self.parameters
        for batch in client.batches:
            index = torch.from_numpy(batch)
            self.grad.zero_()
            h = x.index_select(0, index).permute(0, 3, 1, 2)
            h = F.max_pool2d(F.conv2d(h, w1, b1, padding=2), 2).relu_()
            h = F.max_pool2d(F.conv2d(h, w2, b2, padding=2), 2).relu_()
            F.cross_entropy(F.linear(h.flatten(1), w3, b3), y.index_select(0, index)).backward()
            self.weights.data.sub_(self.grad, alpha=lr)
        return self.weights.detach().clone()


def main() -> None:
    """Serve rounds."""
    line = protocol.private_stdout()
    work, threads = protocol.Work(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(array) for array in work.train())
    x = x.permute(0, 2, 3, 1).contiguous()
    standard = torch.from_numpy(work.weights())
    weights = torch.empty_like(standard)
    start = 0
    for view in views(weights):
        view.copy_(standard[start : start + view.numel()].view(view.shape))
        start += view.numel()
    idle: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(threads):
        idle.put(Worker(len(weights)))
    pool = ThreadPoolExecutor(threads)

    def one(client: protocol.Client) -> Tensor:
        worker = idle.get()
        try:
            return worker.train(weights, x, y, client, work.local_lr)
        finally:
            idle.put(worker)

    def run(clients: list[protocol.Client]) -> None:
        nonlocal weights
        mean, total = torch.zeros_like(weights), sum(client.examples for client in clients)
        for client, after in zip(clients, pool.map(one, clients), strict=True):
            mean.add_(after, alpha=client.examples / total)
        weights = mean

    protocol.serve(line, work, run, lambda: torch.cat([view.reshape(-1) for view in views(weights)]).numpy())
    pool.shutdown()


if __name__ == "__main__":
    main()
