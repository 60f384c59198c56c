"""What may share an axis, a table or a median: runs of one task, one split of its data and one length.

A page of several tasks is several pages in one, each with its own first sentence, lines and colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedhyper.lab.results.comparing import is_problem
from fedhyper.lab.results.groups import Group, as_label, describe, differing, flatten, make_groups
from fedhyper.lab.results.series import Series, make_series
from fedhyper.lab.results.stored import StoredRun

MAX_PARTS = 8  # drawn; the tables have all


@dataclass(frozen=True)
class Part:
    """Comparable runs with the lines they are drawn as; ``title`` says which, and is empty when there is one part."""

    title: str
    groups: list[Group]
    series: list[Series]
    note: str | None  # how lines were put together


def make_parts(runs: Sequence[StoredRun]) -> list[Part]:
    """``runs`` apart by what they learn and for how many rounds, in the order in which each first occurs."""
    flats = [flatten(run.config) for run in runs]
    keys = [key for key in differing(flats) if is_problem(key) or key == "rounds"]
    found: dict[tuple[str, ...], list[StoredRun]] = {}
    for run, flat in zip(runs, flats, strict=True):
        found.setdefault(tuple(as_label(flat.get(key)) for key in keys), []).append(run)
    parts = []
    for members in found.values():
        groups = make_groups(members)
        named = [key for key in keys if as_label(groups[0].settings.get(key)) != "0"]  # subset 0: all of it
        parts.append(Part(describe(groups[0].settings, named), groups, *make_series(groups)))
    return parts
