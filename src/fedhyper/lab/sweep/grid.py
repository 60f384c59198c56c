"""A grid of experiments: ``local_lr=0.001,0.01 seed=0..2`` → cells, each a config with a name that a file may have."""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedhyper.errors import UserError, printable
from fedhyper.lab.config.identity import CHANGEABLE
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.config.toml import parse_value, put, split_override

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
            if not low <= high < low + MAX_CELLS:
                raise UserError(f"command line: {key}={part} is no range; write it as FIRST..LAST")
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


def parse_axes(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What is the same in every cell, and what is not, in the order given."""
    fixed: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, values = parse_axis(text)
        if key in fixed or key in axes:
            raise UserError(f"command line: {key} is given twice; write {key}=A,B")
        if len(values) == 1:
            fixed[key] = values[0]
        else:
            axes[key] = values
    return fixed, axes


def make_cells(values: dict[str, Any], fixed: dict[str, Any], axes: dict[str, list[Any]], source: str) -> list[Cell]:
    """Every combination, all of them checked before any is run. The first axis varies slowest."""
    count = 1
    for column in axes.values():
        count *= len(column)
    if count > MAX_CELLS:
        raise UserError(f"the grid has {count:,} cells; {MAX_CELLS:,} are the most")
    cells: dict[str, Cell] = {}
    for chosen in itertools.product(*axes.values()):
        here, settings = copy.deepcopy(values), dict(zip(axes, chosen, strict=True))
        for key, value in (fixed | settings).items():
            put(here, key, value)
        name = cell_name(settings.items())
        if name in cells:
            name = f"{name[: MAX_NAME - 9]}-{_digest(settings.items())}"
        cells[name] = Cell(name, make_config(here, source, {*fixed, *axes}))
    return list(cells.values())


def cell_name(settings: Iterable[tuple[str, Any]]) -> str:
    """``method=fedavg,seed=0``: readable, and safe as the name of a directory anywhere."""
    settings = [(key, value) for key, value in settings if key not in CHANGEABLE]
    name = ",".join(f"{key}={_word(value)}" for key, value in settings) or "base"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}-{_digest(settings)}"


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text)


def _digest(settings: Iterable[tuple[str, Any]]) -> str:
    return hashlib.blake2b(repr(list(settings)).encode(), digest_size=4).hexdigest()
