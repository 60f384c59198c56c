"""tests/flower_apps in process: plain FedAvg at the shipped rate and at its best, and with FedHyper around it.

python -m benchmarks.flower_apps [names]        # from the project's root; accuracy in percent over orders of nodes
"""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from fedhyper.flower import FedHyper, climbing_mod, mod
from tests.flower_apps.suite import APPS, App, run
from tests.flower_support import LocalGrid

NODES, ORDERS = 10, 3
GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)


def scores(app: App, ours: bool, *mods: Any, nodes: int = NODES, **settings: Any) -> list[float]:
    """Over orders of nodes: who tries which rate, and whose reply comes first."""
    found = []
    for order in range(ORDERS):
        random.seed(order)
        strategy = FedHyper(app.strategy(), **app.settings, **settings) if ours else app.strategy()
        found.append(100 * run(app, strategy, LocalGrid(app.client(*mods), nodes, shuffle=order))[0])
    return found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for name in names or APPS:
        for rounds in (3, APPS[name].rounds):
            app = replace(APPS[name], rounds=rounds)
            best = max(fmean(scores(replace(app, rate=rate), False)) for rate in GRID) if app.hears else None
            row = {"plain": scores(app, False), "two lines": scores(app, True)}
            if name != "sklearn":
                row |= {"and mod": scores(app, True, mod), "and climbing_mod": scores(app, True, climbing_mod)}
            shown = "  ".join(f"{key} {' '.join(f'{v:.1f}' for v in values)}" for key, values in row.items())
            print(f"{name}, {rounds} rounds: {shown}  plain at its best {best and round(best, 1)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
