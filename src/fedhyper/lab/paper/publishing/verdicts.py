"""Verdicts on a page: every claim at every scale side by side, and what runs decided that were not kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedhyper.lab.paper.awake import OLD
from fedhyper.lab.paper.measured import table

SHRUNK = "shrunk"  # the folder of the pages of the old small scale
DECIDED = ("reproduced", "not reproduced")
Part = dict[str, Any]
Claimed = tuple[str, str]  # a claim and a dataset


def lost_tasks(part: Part) -> list[str]:
    """The datasets of which an earlier session published methods that have no run today."""
    lost = part["lost"]["methods"] if part.get("lost") else {}
    return [task for task, methods in lost.items() if set(methods) - set(part["methods"].get(task, ()))]


def known_verdicts(part: Part) -> dict[Claimed, dict[str, Any]]:
    """Every verdict by claim and dataset; where today's runs decide nothing, what runs decided that were not kept."""
    found = _by_claim(part)
    before = _by_claim(part["lost"]) if part.get("lost") else {}
    for key, verdict in before.items():
        if verdict["status"] in DECIDED and key in found and found[key]["status"] not in DECIDED:
            found[key] = verdict | {"lost": True}
    return found


def first_updates_of(part: Part) -> dict[str, float]:
    """The length of the first update by dataset, of runs that were not kept where there is no other."""
    return {**part.get("lost", {}).get("first_updates", {}), **part["first_updates"]}


def claims_table(parts: Sequence[Part], old: Part | None) -> str:
    """A row a claim and dataset, a column a scale; ``old`` is the old small scale's."""
    header = ["claim", "data", "the paper", *(f"scale {part['scale']}" for part in parts)]
    header += ["with less local work", "changes with the local work?"] if old else []
    columns = [known_verdicts(part) for part in parts]
    before = _by_claim(old) if old else {}
    rows = []
    for verdict in parts[0]["verdicts"]:
        key = verdict["text"], verdict["task"]
        row = [verdict["text"], verdict["task"], verdict["paper"], *(_cell(column.get(key)) for column in columns)]
        rows.append([*row, _cell(before.get(key)), _change(key, columns, before)] if old else row)
    return table(header, rows)


def _by_claim(part: Part) -> dict[Claimed, dict[str, Any]]:
    return {(verdict["text"], verdict["task"]): verdict for verdict in part["verdicts"]}


def _cell(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return "–"
    if verdict["status"] not in DECIDED:
        return (
            f"not tested here: {verdict['why']}" if verdict["ours"] == "–" else f"{verdict['ours']}; {verdict['why']}"
        )
    before = "*runs not kept*: " if verdict.get("lost") else ""
    return f"{before}**{verdict['status']}**: {verdict['ours']}; {verdict['why']}"


def _change(key: Claimed, columns: Sequence[dict[Claimed, dict[str, Any]]], before: Any) -> str:
    now = {c[key]["status"] for c in columns if key in c and c[key]["status"] in DECIDED}
    then = before[key]["status"] if key in before and before[key]["status"] in DECIDED else None
    if not now or then is None:
        return "–"
    if len(now) > 1:  # rounds or seeds, then: our scales have the same local work
        return "unclear: scales with the same local work differ"
    return "no" if now == {then} else f"**yes**: {then} → {now.pop()}"


def less_work_words(old: Part | None) -> list[str]:
    """What the column of the old small scale is, if there is one."""
    if not old:
        return []
    return [
        f"“With less local work” is {OLD}. It is no verdict on the paper: updates there are so short that FedHyper-G's "
        f"rate hardly moves ([why](awake.md); [those pages]({SHRUNK}/README.md)).",
        "",
    ]
