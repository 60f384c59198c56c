"""A grid of experiments: ``local_lr=0.001,0.01 seed=0..2`` → cells, each a config with a name that a file may have.

``fedavgm:options.momentum=0.8,0.9`` is for the cells of one method: baselines are tuned in the same command.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedhyper.errors import UserError, printable
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.config.toml import parse_value, put_all, split_override
from fedhyper.sim.methods import method_options

MAX_CELLS = 100_000
MAX_NAME = 120  # of the 255 bytes that file systems allow
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")


@dataclass(frozen=True)
class Cell:
    """One experiment of a grid."""

    name: str
    config: Config


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """``seed=0..2`` → (``seed``, [0, 1, 2]); ``method=fedavg,fedexp`` → (``method``, [...])."""
    key, written = split_override(text)
    values: list[Any] = []
    for part in _split(written):
        ends = _RANGE.fullmatch(part)
        if ends:
            low, high = int(ends[1]), int(ends[2])
            if low > high:
                raise UserError(f"command line: {key}={part} is no range; write it as FIRST..LAST")
            if high - low >= MAX_CELLS:
                raise UserError(f"command line: {key}={part} is more than {MAX_CELLS:,} values; take fewer")
            values += range(low, high + 1)
        else:
            values.append(parse_value(part, key))
    for i, value in enumerate(values):
        if value in values[:i]:
            raise UserError(f"command line: {key} has the value {printable(str(value), 60)} twice")
    return key, values


def _split(text: str) -> list[str]:
    """At the commas that are in no quotes and no brackets."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += c
    return [part.strip() for part in parts]


@dataclass
class Grid:
    """What a sweep varies. ``only`` holds what was written as ``METHOD:key=…`` and counts for that method alone."""

    fixed: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, list[Any]] = field(default_factory=dict)
    only: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def description(self) -> dict[str, dict[str, Any]]:
        """What ``sweep.toml`` says of it."""
        only = {f"{method}:{key}": values for method, own in self.only.items() for key, values in own.items()}
        return {"axes": self.axes, "fixed": self.fixed, "only": only}


def parse_axes(texts: Sequence[str]) -> Grid:
    """What is the same in every cell, what is not, in the order given, and what is one method's own."""
    grid = Grid()
    for text in texts:
        scope, colon, rest = text.partition(":")
        method = scope.strip() if colon and "=" not in scope else ""
        key, values = parse_axis(rest.strip() if method else text)
        if method and key == "method":
            raise UserError(f"command line: '{printable(text)}' gives {printable(method)} another method; leave it out")
        given = grid.only.setdefault(method, {}) if method else grid.fixed | grid.axes
        if key in given:
            raise UserError(f"command line: {printable(method + colon if method else '')}{key} is given twice")
        if method:
            grid.only[method][key] = values
        elif len(values) == 1:
            grid.fixed[key] = values[0]
        else:
            grid.axes[key] = values
    return grid


def make_cells(values: dict[str, Any], grid: Grid, source: str) -> list[Cell]:
    """Every combination, all of them checked before any is run. The first axis varies slowest."""
    default = grid.fixed.get("method", values.get("method", Config.model_fields["method"].default))
    methods = grid.axes.get("method", [default])
    for method in grid.only:
        if method not in methods:
            named = ", ".join(map(str, methods))
            raise UserError(f"command line: {printable(method)}: is not a method of this sweep, which has {named}")
    cells: dict[str, Cell] = {}
    for settings in itertools.islice(_combinations(grid, methods), MAX_CELLS + 1):
        if len(cells) == MAX_CELLS:
            raise UserError(f"the grid has more than {MAX_CELLS:,} cells")
        here = copy.deepcopy(values)
        own = grid.only.get(str(settings.get("method", methods[0])), {})
        alone = {key: given[0] for key, given in own.items() if len(given) == 1}
        put_all(here, grid.fixed | alone | settings)
        name = cell_name(settings.items())
        if name in cells:
            name = f"{name[: MAX_NAME - 9]}-{_digest(settings.items())}"
        try:
            cells[name] = Cell(name, make_config(here, source, {*grid.fixed, *alone, *settings}))
        except UserError as error:
            raise UserError(f"{error}{_of_others(str(error), grid, methods)}") from error
    return list(cells.values())


def _of_others(message: str, grid: Grid, methods: Sequence[Any]) -> str:
    """How to set an option that some methods of the sweep have, where ``message`` says that another has not."""
    for key in grid.fixed | grid.axes:
        having = [one for one in methods if key.removeprefix("options.") in method_options(str(one))]
        if key.startswith("options.") and having and f"{key} is not an option" in message:
            return f"; write {having[0]}:{key}=VALUES"
    return ""


def _combinations(grid: Grid, methods: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The settings of every cell: the general axes, in each method its own in their place."""
    if not grid.only:
        for chosen in itertools.product(*grid.axes.values()):
            yield dict(zip(grid.axes, chosen, strict=True))
        return
    for method in methods:
        own = grid.only.get(str(method), {})
        axes = {key: given for key, given in grid.axes.items() if key not in own}
        axes |= {key: given for key, given in own.items() if len(given) > 1}
        if "method" in axes:
            axes = {"method": [method]} | {key: given for key, given in axes.items() if key != "method"}
        for chosen in itertools.product(*axes.values()):
            yield dict(zip(axes, chosen, strict=True))


def cell_name(settings: Iterable[tuple[str, Any]]) -> str:
    """``method=fedavg,seed=0``: readable, and safe as the name of a directory anywhere."""
    settings = list(settings)
    name = ",".join(f"{key}={_word(value)}" for key, value in settings) or "base"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}-{_digest(settings)}"


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text)


def _digest(settings: Iterable[tuple[str, Any]]) -> str:
    return hashlib.blake2b(repr(list(settings)).encode(), digest_size=4).hexdigest()
