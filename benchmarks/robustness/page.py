"""The page: what was measured against what, which targets are missed, and which runs are missing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from statistics import fmean, median

from benchmarks.robustness import tables, words
from benchmarks.robustness.chart import draw
from benchmarks.robustness.judging import Row, judge, scores, wanted
from benchmarks.robustness.oracle import grid, tried
from benchmarks.robustness.settings import Axis
from benchmarks.robustness.store import Store
from fedhyper.storage.files import write_new

GRID_ON = "digits, Dirichlet 0.5"
_MARK = re.compile(r"(<!-- robustness: begin -->\n).*?(<!-- robustness: end -->)", re.DOTALL)
Found = dict[str, tables.Rows]


def write(axes: dict[str, Axis], store: Store, out: Path, pages: Path | None) -> Path:
    """Write the page into ``out``, and where it is published: the figure, too, and what README and guide say of it."""
    found: Found = {name: [(row, judge(axis, row, store)) for row in axis.rows] for name, axis in axes.items()}
    text = _markdown(axes, found, store)
    if pages is None:
        return write_new(out / "robustness.md", text)
    shutil.rmtree(pages / "robustness", ignore_errors=True)  # the figures of the first form
    draw(_dots(axes, found), pages.parent / "img" / "robustness.svg")
    _mention(pages.parents[1] / "README.md", _chart(axes, found, "docs/"))
    _mention(pages.parent / "choose-a-scheduler.md", _chart(axes, found, ""))
    return write_new(pages / "robustness.md", text)


def _mention(document: Path, text: str) -> None:
    """Put ``text`` between the two marks of a document, if it has them."""
    old = document.read_text(encoding="utf-8") if document.exists() else ""
    if _MARK.search(old):
        write_new(document, _MARK.sub(lambda marks: f"{marks[1]}{text}\n{marks[2]}", old))


def _markdown(axes: dict[str, Axis], found: Found, store: Store) -> str:
    parts = [words.HEAD, "## In short", tables.summary(axes, found)]
    parts += ["![difference to the oracle, a dot a setting](../img/robustness.svg)", _missed(axes, found)]
    for name, axis in axes.items():
        parts += [f"## {axis.title}", f"Target: {axis.target}.", axis.note, *tables.of_axis(name, found[name])]
    parts += ["## How the oracle is found", words.SEARCH, _grid(axes, store), "## Cost", _cost(found)]
    parts += ["## Missing", _missing(axes, found), words.FIRST_FORM]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(found: Found) -> list[Row]:
    """Every row that is held against an oracle on equal terms; one that stands in two tables once."""
    every = [row for rows in found.values() for _, row in rows if row]
    rows = [row for row in every if not row.setting.options and not row.setting.defended]
    return list({row.setting.key: row for row in rows}.values())


def _missed(axes: dict[str, Axis], found: Found) -> str:
    rows = [(axes[name].title, row) for name in axes for _, row in found[name] if row and row.misses]
    lines = [f"- {title}: {row.setting.name}: {', '.join(row.misses)}" for title, row in rows]
    return "**Missed:**\n\n" + "\n".join(lines) if lines else "No target is missed by what was run."


def _grid(axes: dict[str, Axis], store: Store) -> str:
    """What the whole grid finds beyond the search, on the digits."""
    base = next((row for axis in axes.values() for row in axis.rows if row.name == GRID_ON), None)
    if base is None or wanted(base, store):
        return ""
    score = scores(base, store)
    whole = {rival: value for rival in grid(base.middle) if (value := score(rival)) is not None}
    if len(whole) < len(grid(base.middle)):
        return "The whole grid has not been run: `python -m benchmarks.robustness skew --tasks digits --grid`."
    ran, best = tried(score, base.middle, base.least), max(whole, key=lambda rival: whole[rival])
    return (
        f"On *{GRID_ON}* the whole grid was run, too: {len(whole)} rivals on three seeds. Its best is {best.words}\n"
        f"with {whole[best]:.2f}; the search found {ran[0].words} with {score(ran[0]):.2f} after {len(ran)} rivals."
    )


def _cost(found: Found) -> str:
    # of three rounds a median says little
    ratios = [row.first for row in _rows(found) if row.setting.values["rounds"] >= 12]
    if not ratios:
        return ""
    return (
        f"The first round, in which clients try rates out, took {median(ratios):.0f} × the training time of a later "
        f"one (median of {len(ratios)} settings of\n12 rounds or more, from {min(ratios):.0f} to {max(ratios):.0f}, on "
        "a busy machine; most with one to three clients a round, and in short\nruns, where whole runs are tried). So "
        f"in the median setting a run of T rounds costs about 1 + {median(ratios) - 1:.0f}/T of FedAvg's.\nNo model "
        "more is sent; a client sends two numbers more a round, and a vote in the first."
    )


def _missing(axes: dict[str, Axis], found: Found) -> str:
    rows = [(name, setting) for name in axes for setting, row in found[name] if row is None]
    lines = [f"- {axes[name].title}: {setting.name}" for name, setting in rows]
    parts = (
        ["Nothing."]
        if not rows
        else [f"{len(rows)} row{'s' * (len(rows) > 1)}. `make bench-robustness` goes on with them.", "\n".join(lines)]
    )
    return "\n\n".join(parts)


def _dots(axes: dict[str, Axis], found: Found) -> list[dict[str, object]]:
    return [
        {
            "axis": axes[name].title,
            "difference": row.difference,
            "kind": "a target missed" if row.misses else "target met",
        }
        for name in axes
        for _, row in found[name]
        if row
    ]


def _chart(axes: dict[str, Axis], found: Found, path: str) -> str:
    """The chart in another document, and its figures in two sentences."""
    rows = _rows(found)
    text = f"![fedhyper minus a rival tuned on the test set, a dot a setting]({path}img/robustness.svg)"
    if not rows:
        return text
    worst, under = min(rows, key=lambda row: row.difference), sum(row.difference < 0 for row in rows)
    missed = sum(bool(row.misses) for name in axes for _, row in found[name] if row)
    mean = fmean(row.difference for row in rows)
    defended = [row.difference for some in found.values() for _, row in some if row and row.setting.defended]
    costs = (
        f"\nBoth without the defence against hostile clients; with it as it comes, which the rivals still lack, "
        f"{fmean(defended):+.1f} on average of {len(defended)}\nof these settings, at worst {min(defended):+.1f}."
        if defended
        else ""
    )
    return (
        f"{text}\n\nAgainst the better of FedAvg and FedAvgM, its rates and decay chosen on the test set, on seeds "
        f"that nothing was chosen on: {mean:+.1f} points on average of {len(rows)} settings,\nbelow it in "
        f"{under} of them, at worst {worst.difference:+.1f} ({worst.setting.name}); {missed} targets are missed."
        f"{costs}\n"
        f"[Every row, and what is missed]({path}results/robustness.md)"
    )
