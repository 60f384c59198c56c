"""The settings of a page's runs: those that differ, those that were chosen, and, folded, those nobody touched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fedhyper.errors import UserError
from fedhyper.lab.results.groups import Group, as_label, differing, flatten
from fedhyper.lab.results.page.sections import MAX_LISTED, heading, html_table


def settings(groups: Sequence[Group]) -> str:
    """A table of what differs, one of what is the same and was chosen, and the defaults behind a fold."""
    flats = [group.settings for group in groups]
    keys = sorted({key for flat in flats for key in flat} - {"seed"})
    untouched = [key for key in keys if all(_is_default(flat, key) for flat in flats)]
    different = [key for key in differing(flats) if key not in untouched]  # a method's own defaults are no choice
    html = ""
    if different and len(groups) <= MAX_LISTED:
        rows = [((key, *(as_label(flat.get(key, "–")) for flat in flats)), False) for key in different]
        html = html_table(("differs", *(group.label for group in groups)), rows, "Settings that differ", "left")
    elif different:
        html = _table("differs", "values", different, flats)
    chosen = [key for key in keys if key not in untouched and key not in different]
    if chosen:
        html += _table("the same in all runs" if len(groups) > 1 else "setting", "value", chosen, flats)
    if untouched:
        table = _table("default", "value", untouched, flats)
        html += f"<details><summary>{len(untouched)} settings at their defaults</summary>{table}</details>"
    return f"<section>{heading('Settings')}{html}</section>" if html else ""


def _table(what: str, values: str, keys: Sequence[str], flats: Sequence[dict[str, Any]]) -> str:
    return html_table(
        (what, values), [((key, _values(flats, key)), False) for key in keys], f"Settings: {what}", "left"
    )


def _values(flats: Sequence[dict[str, Any]], key: str) -> str:
    values = list(dict.fromkeys(as_label(flat[key]) for flat in flats if key in flat))
    return ", ".join(values[:MAX_LISTED]) + (f" … ({len(values)} values)" if len(values) > MAX_LISTED else "")


def _is_default(flat: dict[str, Any], key: str) -> bool:
    # A setting that a run does not have was left alone in it; which task and which method is always worth saying.
    if key in ("task", "model", "method"):
        return False
    known = _defaults(as_label(flat.get("task")), as_label(flat.get("method")))
    return key not in flat or (key in known and known[key] == flat[key])


@cache
def _defaults(task: str, method: str) -> dict[str, Any]:
    """Every default of a config of this task and method; none for what is not known here, such as a plug-in's."""
    from fedhyper.lab.config.model import make_config

    try:
        return flatten(make_config({"task": task, "method": method}).values())
    except UserError:
        return {}
