"""examples/flower_quickstart in process: plain FedAvg and auto, with other orders of nodes, hence others on each rate.

python -m benchmarks.flower_quickstart 3 10 30        # rounds; from the project's root, takes some minutes
"""

from __future__ import annotations

import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch

from tests import test_flower_quickstart as quickstart
from tests.flower_support import LocalGrid

if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory() as directory:
        plain = quickstart.patched(Path(directory))
        two = quickstart.patched(Path(directory), "two-lines.diff")
        for rounds in map(int, sys.argv[1:]):
            for app, name, rates, orders in ((plain, "plain", (1e-3, 0.1), 1), (two, "auto", (1e-4, 10.0), 5)):
                for rate in rates:
                    found = []
                    for order in range(orders):
                        patch.setattr(quickstart, "LocalGrid", partial(LocalGrid, shuffle=order))
                        settings = {"learning-rate": rate, "num-server-rounds": rounds}
                        found.append(round(100 * quickstart.accuracy(app, patch, **settings), 1))
                    print(rounds, name, rate, found, flush=True)
