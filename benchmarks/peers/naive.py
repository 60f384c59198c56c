"""The loop anybody would write: one client after the other, data as tensors in memory, torch.optim.SGD.

python naive.py DIRECTORY THREADS
"""

from __future__ import annotations

import sys

import protocol
import torch
import torch_models
from torch.nn.functional import cross_entropy


def main() -> None:
    """Serve rounds."""
    line = protocol.private_stdout()
    work = protocol.Work(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    x, y = (torch.from_numpy(array) for array in work.train())
    weights = torch.from_numpy(work.weights())
    model = torch_models.make(work.model, weights)

    def run(clients: list[protocol.Client]) -> None:
        nonlocal weights
        mean, total = torch.zeros_like(weights), sum(client.examples for client in clients)
        for client in clients:
            torch_models.load(model, weights.clone())
            optimizer = torch.optim.SGD(model.parameters(), lr=work.local_lr)
            for batch in client.batches:
                index = torch.from_numpy(batch)
                optimizer.zero_grad()
                cross_entropy(model(x[index]), y[index]).backward()
                optimizer.step()
            mean += torch_models.flat(model) * (client.examples / total)
        weights = mean

    protocol.serve(line, work, run, lambda: weights.numpy())


if __name__ == "__main__":
    main()
