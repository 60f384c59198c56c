"""Everything that can be wrong with a sweep before it trains, found before its first cell starts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedhyper.errors import UserError
from fedhyper.lab.sweep.grid import Cell

_DATA = ("task", "subset", "clients", "partition")
_MODEL = ("task", "subset", "model", "model_options")


def check_cells(cells: Sequence[Cell]) -> None:
    """Load the data, split it and build the model of every kind of cell once; the first that cannot be is named.

    A config is checked when it is made. What it is about may still not be there: data that are not on this machine,
    more clients than examples, a model that does not take the task's inputs.
    """
    seen: set[str] = set()
    for cell in sorted(cells, key=lambda cell: cell.config.task):  # the data of one task stay loaded
        values = cell.config.values()
        for check, keys in ((_split, _DATA), (_model, _MODEL)):
            kind = json.dumps([check.__name__, *(values[key] for key in keys)], sort_keys=True)
            if kind not in seen:
                seen.add(kind)
                check(cell)


def _split(cell: Cell) -> None:
    from fedhyper.lab.running.build import make_partition

    try:
        make_partition(cell.config)
    except UserError as error:
        raise type(error)(f"cell {cell.name}: {error}") from error


def _model(cell: Cell) -> None:
    from fedhyper.lab.running.build import load_task
    from fedhyper.sim.models import make_model

    config = cell.config
    task = load_task(config.task, config.subset)
    try:
        make_model(config.model, task.shape, task.classes, seed=0, tokens=task.tokens, **config.model_options)
    except UserError as error:
        raise type(error)(f"cell {cell.name}: {error}") from error
