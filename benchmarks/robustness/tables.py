"""The tables of the page, in Markdown; a row that was not run says so."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.robustness.axes import CHANGES
from benchmarks.robustness.judging import Row
from benchmarks.robustness.settings import Axis, Setting

Rows = Sequence[tuple[Setting, Row | None]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled up."""
    filled = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *filled))


def of_axis(name: str, rows: Rows) -> list[str]:
    """The tables of an axis: against the oracle, and what is held against fedhyper itself."""
    plain = [(setting, row) for setting, row in rows if not setting.options]
    changed = [(setting, row) for setting, row in rows if setting.options]
    tables = [_against_oracle(plain)] if plain else []
    if changed:
        tables.append(_constants(changed) if name == "constants" else _against_itself(changed))
    return tables


def summary(axes: dict[str, Axis], found: dict[str, Rows]) -> str:
    """A line an axis: how many rows meet their target."""
    lines = []
    for name, axis in axes.items():
        rows = [row for _, row in found[name] if row]
        met, apart = sum(not row.misses for row in rows), [row.difference for row in rows]
        shown = [f"{fmean(apart):+.1f}", f"{min(apart):+.1f}"] if apart else ["–", "–"]
        counts = [met, len(rows) - met, len(axis.rows) - len(rows)]
        lines.append([axis.title, axis.target, *map(str, counts), *shown])
    return table(["axis", "target", "met", "missed", "not run", "mean difference", "worst"], lines)


def _against_oracle(rows: Rows) -> str:
    head = ["setting", "oracle", "its seeds", "fedhyper's seeds", "difference", "rounds to 95 %: fedhyper, oracle"]
    lines = []
    for setting, row in rows:
        if row is None:
            lines.append([setting.name, "not run"])
            continue
        # the curves of runs with a setting changed are not kept
        rounds = "" if setting.defended else ", ".join("–" if t is None else f"{t:.0f}" for t in row.rounds)
        oracle = f"{fmean(row.theirs):.1f}: {row.rival}"
        apart = f"{row.difference:+.1f}"
        lines.append([setting.name, oracle, _seeds(row.theirs), _seeds(row.ours), apart, rounds, _verdict(row)])
    return table([*head, "target"], lines)


def _against_itself(rows: Rows) -> str:
    lines = []
    for setting, row in rows:
        if row is None:
            lines.append([setting.name, "not run"])
            continue
        rates = f"{row.rates[0]:.2g} to {row.rates[1]:.2g}" if row.rates else "–"
        apart = f"{row.difference:+.1f}"
        lines.append([setting.name, _seeds(row.theirs), _seeds(row.ours), apart, rates, _verdict(row)])
    ran = [row for _, row in rows if row]
    different = len({(row.setting.key, row.ours, row.rates) for row in ran})
    note = (
        f"{len(ran)} rows are {different} different runs of each seed: a lie that changes no decision changes no bit."
    )
    return table(["setting", "without", "with", "difference", "local rates", "target"], lines) + f"\n\n{note}"


def _constants(rows: Rows) -> str:
    """A column a setting, a row a change: the difference to the rule as it is."""
    cells = {(setting.name.partition(": ")[0], setting.name.partition(": ")[2]): row for setting, row in rows}
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    known = {kind: row for (kind, _), row in cells.items() if row}
    lines = [["as it is, percent", *(f"{fmean(known[kind].theirs):.1f}" if kind in known else "–" for kind in kinds)]]
    lines += [[change, *(_cell(cells.get((kind, change))) for kind in kinds)] for change in CHANGES]
    return table(["", *kinds], lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"**{row.difference:+.1f}**" if row.misses else f"{row.difference:+.1f}"


def _verdict(row: Row) -> str:
    return f"**{', '.join(row.misses)}**" if row.misses else "met"


def _seeds(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
