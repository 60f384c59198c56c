"""The one file of what was measured: setting → run → score, seconds, commit. A run that is in it is not run again.

A rival's runs depend on nothing but their config, so a changed rule is judged by running its own cells only; fedhyper's
carry the digest of the rule that made them, and those of another rule are dropped when the file is saved.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.robustness.runs import Entry, Want
from fedhyper.errors import UserError
from fedhyper.lab.running.rule import rule
from fedhyper.storage.files import read_json, write_new

KEPT_CURVES = 2  # rivals of a setting whose curve is kept: the best ones


class Store:
    """What was measured so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, dict[str, Entry]] = defaultdict(dict)
        self._merge(path)

    def _merge(self, path: Path) -> None:
        """Take in what is in the file and not known here: another process may have written it meanwhile."""
        try:
            for key, cells in (read_json(path) or {}).items():
                for word, values in cells.items():
                    self.cells[key].setdefault(word, _entry(values))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{path} is not a file of measured cells ({type(error).__name__})"
            raise UserError(f"{what}; restore or remove it") from error

    def get(self, want: Want) -> Entry | None:
        """What the run was measured to give; None: it was not run."""
        return self.cells.get(want.setting.key, {}).get(want.word)

    def put(self, want: Want, entry: Entry) -> None:
        """Keep what a run gave."""
        self.cells[want.setting.key][want.word] = entry

    def save(self) -> None:
        """Write the file, a line a run, so that a difference between two versions can be read."""
        self._merge(self.path)
        blocks = []
        for key in sorted(self.cells):
            cells = _pruned(self.cells[key])
            lines = [f"  {json.dumps(word)}: {json.dumps(_values(cells[word]))}" for word in sorted(cells)]
            blocks.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
        write_new(self.path, "{\n" + ",\n".join(blocks) + "\n}\n")


def _pruned(cells: dict[str, Entry]) -> dict[str, Entry]:
    """Without other rules' runs, and with no curves but those of the best rivals and of the rule as it is."""
    by_rival: dict[str, list[float]] = defaultdict(list)
    for word, entry in cells.items():
        if "@" not in word:
            by_rival[word.rpartition(" seed ")[0]].append(entry.score)
    # those with most seeds first: a search on one seed is followed by all seeds of the best
    best = sorted(by_rival, key=lambda rival: (-len(by_rival[rival]), -fmean(by_rival[rival])))[:KEPT_CURVES]
    kept = {}
    for word, entry in cells.items():
        if "@" in word and f"@{rule()} " not in word:
            continue
        ours = "@" in word
        curve = entry.reached if (ours and "=" not in word) or word.rpartition(" seed ")[0] in best else ()
        kept[word] = entry._replace(
            reached=curve, rates=entry.rates if ours else None, first=entry.first if ours else 0.0
        )
    return kept


def _values(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry._asdict().items() if value or name == "score"}


def _entry(values: dict[str, Any]) -> Entry:
    return Entry(
        float(values["score"]),
        float(values.get("seconds", 0.0)),
        str(values.get("commit", "")),
        tuple((int(t), float(value)) for t, value in values.get("reached", ())),
        (float(values["rates"][0]), float(values["rates"][1])) if "rates" in values else None,
        float(values.get("first", 0.0)),
    )
