"""What stands on the page between head and scripts: results, figures, settings, runs, machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fedhyper.lab.results.groups import Group, as_label, flatten
from fedhyper.lab.results.metrics import short, total_seconds
from fedhyper.lab.results.series import Series
from fedhyper.lab.results.stored import StoredRun
from fedhyper.lab.results.tables import COLUMNS, OVERHEAD, SWEEP, headline_rows, sweep_rows

if TYPE_CHECKING:
    from fedhyper.lab.results.figures.figure import Figure


MAX_LISTED = 12


def summary(groups: Sequence[Group], series: Sequence[Series], level: int = 2) -> str:
    """The results: tiles for one group, a table for several, a table a method for a sweep."""
    every = html_table((*COLUMNS, *OVERHEAD), [(row.cells, row.best) for row in headline_rows(groups)], "Results")
    if len(groups) == 1:
        return _tiles(groups[0])
    if any(one.over == "settings" for one in series):
        table = html_table(SWEEP, [(cells, False) for cells in sweep_rows(series)], "Results by method")
        every = f"<details><summary>All {len(groups)} settings</summary>{every}</details>"
        return f"<section>{heading('Results', level)}{table}{every}</section>"
    return f"<section>{heading('Results', level)}{every}</section>"


def _tiles(group: Group) -> str:
    row = headline_rows([group])[0].cells
    seconds = sum(map(total_seconds, group.runs)) / len(group.runs)
    facts = [(name, value) for name, value in zip((*COLUMNS, *OVERHEAD), row, strict=True) if value != "–"]
    facts = [fact for fact in facts if fact[0] not in ("setting", "runs")] + [
        ("seconds in all", f"{seconds:,.{0 if seconds >= 10 else 1}f}")
    ]
    if trials := sum(record.get("start_trials") or 0 for run in group.runs for record in run.rounds):
        facts.append(("extra local rounds to find the rate", f"{trials / len(group.runs):,.0f}"))
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="tiles">{tiles}</dl>'


def heading(text: str, level: int = 2) -> str:
    """A heading; those inside a part are of the third level."""
    return f"<h{level}>{escape(text)}</h{level}>"


def html_table(header: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]], name: str, kind: str = "") -> str:
    """A table that scrolls on its own when it is too wide; a row is its cells and whether it is the best."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = [
        f'<tr{" class=best" if best else ""}><th scope="row">{escape(cells[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells, best in rows
    ]
    return (
        '<p class="more" aria-hidden="true">scroll sideways for more →</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def sections(
    drawn: Sequence[tuple[int, Figure]], series: Sequence[Series], note: str | None, level: int = 2
) -> list[str]:
    """A section for every heading that figures stand under, each with its legend; a figure comes with its number."""
    html = []
    for section in dict.fromkeys(figure.section for _, figure in drawn):
        members = [(index, figure) for index, figure in drawn if figure.section == section]
        legend = _legend(series, members[0][1].part) if any(figure.by_series for _, figure in members) else ""
        hint = f'<p class="hint">{escape(note)}</p>' if note and legend else ""
        note = None if hint else note  # said once
        html.append(
            f"<section>{heading(section, level)}{legend}{hint}"
            f'<div class="figures">{"".join(_figure(index, figure) for index, figure in members)}</div></section>'
        )
    return html


def _legend(series: Sequence[Series], part: int) -> str:
    if len(series) < 2:
        return ""
    chips = "".join(
        f'<button type="button" class="chip s{index}" data-series="{index}" data-part="{part}" aria-pressed="true">'
        f"<span>{escape(one.label)}</span></button>"
        for index, one in enumerate(series)
    )
    return f'<div class="legend" role="group" aria-label="Show or hide series">{chips}</div>'


def _figure(index: int, figure: Figure) -> str:
    caption = f"<span>{escape(figure.caption)}</span>" if figure.caption else ""
    return (
        f'<figure{" class=wide" if figure.wide else ""} aria-labelledby="t{index}">'
        f'<figcaption id="t{index}"><b>{escape(figure.title)}</b>{caption}</figcaption>'
        f'<div class="chart" id="{figure.key}" data-chart="{index}" role="img" tabindex="0" '
        f'aria-label="{escape(figure.alt)}"></div>'
        '<div class="save"><button type="button" data-save="svg" aria-label="Save as SVG">SVG</button>'
        '<button type="button" data-save="png" aria-label="Save as PNG">PNG</button></div></figure>'
    )


def run_list(runs: Sequence[StoredRun]) -> str:
    """Every run: how it ended, what it reached, what could not be read of it."""
    rows = [
        (
            (
                run.name,
                as_label(run.status),
                str(run.rounds[-1]["round"]) if run.rounds else "0",
                short(100 * accuracy, 1) if (accuracy := run.final_accuracy) is not None else "–",
                f"{total_seconds(run):,.0f}",
                as_label((run.summary or {}).get("weights_sha256", "–"))[:12],
                "; ".join(run.problems) or "–",
            ),
            False,
        )
        for run in runs
    ]
    table = html_table(("run", "status", "rounds", "accuracy (%)", "seconds", "weights", "problems"), rows, "Runs")
    opened = " open" if len(runs) <= 3 else ""
    return f"<section>{heading('Runs')}<details{opened}><summary>All {len(runs)}</summary>{table}</details></section>"


def machines(runs: Sequence[StoredRun]) -> str:
    """Versions and machines, a column for each that occurs."""
    seen: dict[str, tuple[dict[str, Any], int]] = {}
    for run in runs:
        if run.env:
            env = {key: value for key, value in flatten(run.env).items() if key not in ("started", "begun_with_rounds")}
            known = json.dumps(env, sort_keys=True, default=str)
            seen[known] = (env, seen.get(known, (env, 0))[1] + 1)
    if not seen:
        return ""
    envs = list(seen.values())[:MAX_LISTED]
    keys = list(dict.fromkeys(key for env, _ in envs for key in env))
    rows = [((key, *(as_label(env.get(key)) for env, _ in envs)), False) for key in keys]
    header = ("", *(f"{count} run{'s' if count > 1 else ''}" for _, count in envs))
    name = "Versions and machine"
    return f"<section>{heading(name)}{html_table(header, rows, name, 'left')}</section>"
