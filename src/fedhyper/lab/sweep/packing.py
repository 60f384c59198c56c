"""In which order the cells of a sweep start: the longest first, so that no core waits for one cell at the end."""

from __future__ import annotations

from collections.abc import Iterable

from fedhyper.lab.config.model import Config
from fedhyper.lab.sweep.grid import Cell

# One example of one local step, in units of softmax regression's. Rough: they only have to put cells in order.
_MODEL = {"logistic": 1.0, "mlp": 4.0, "cnn": 30.0, "lstm": 1_000.0, "resnet18": 10_000.0}
_SEQUENTIAL = 3.0


def expected_cost(config: Config) -> float:
    """How long a cell will take, in a unit that cells of one sweep share."""
    steps = config.local_steps * config.batch_size or config.local_epochs * 1_000 / config.clients
    slower = _SEQUENTIAL if config.engine == "sequential" else 1.0
    return config.rounds * config.clients_per_round * steps * _MODEL.get(config.model or "", 1.0) * slower


def longest_first(cells: Iterable[Cell]) -> list[Cell]:
    """``cells`` by falling cost; of equal ones those of a task together, whose data stay loaded, then as they were."""
    return sorted(cells, key=lambda cell: (-expected_cost(cell.config), cell.config.task))
