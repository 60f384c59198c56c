"""One self-contained page of a set of runs, and the same figures as files.

Everything a config or log says is escaped where it enters: ``html.escape`` in markup, ``\\uXXXX`` for the characters
that could end a script element in embedded JSON. Behind that stands a content security policy that lets exactly the
two scripts of this page run (by their hash), forbids ``eval``, and allows no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhyper import __version__
from fedhyper.errors import UserError
from fedhyper.lab.results.groups import (
    Group,
    as_label,
    comparability,
    differing,
    flatten,
    make_groups,
    total_seconds,
    unfinished,
)
from fedhyper.lab.results.headline import headline
from fedhyper.lab.results.series import Series, make_series
from fedhyper.lab.results.stored import StoredRun, load_runs
from fedhyper.lab.results.tables import COLUMNS, OVERHEAD, SWEEP, headline_rows, sweep_rows
from fedhyper.storage.files import write_new

if TYPE_CHECKING:
    from fedhyper.lab.results.figures import Figure

FORMATS = ("png", "svg", "pdf")
_MAX_LISTED = 12


def write_report(paths: Sequence[Path], out: Path, *, title: str | None = None) -> Path:
    """Write the page of all runs under ``paths`` to ``out``, whole or not at all, and return ``out``."""
    # Here, because plots asks for the [report] extra, and a run without it must still be able to say so.
    from fedhyper.lab.results import figures

    runs = load_runs(paths)
    groups = make_groups(runs)
    series, note = make_series(groups)
    drawn = figures.make_figures(groups, series, legend=False)
    return write_new(Path(out), _page(runs, groups, series, note, drawn, title))


def write_figures(paths: Sequence[Path], directory: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Every figure of the page as a file in ``directory``, once a format; returns the files written."""
    from fedhyper.lab.results import charts as plots
    from fedhyper.lab.results import figures

    for unknown in set(formats) - set(FORMATS):
        raise UserError(f"figure format {unknown!r} is unknown; use {', '.join(FORMATS)}")
    groups = make_groups(load_runs(paths))
    series, _ = make_series(groups)
    return [
        plots.save(figure.chart, Path(directory) / f"{figure.key}.{suffix}", title=figure.title)
        for figure in figures.make_figures(groups, series, legend=len(series) > 1)
        for suffix in formats
    ]


def _page(
    runs: Sequence[StoredRun],
    groups: Sequence[Group],
    series: Sequence[Series],
    note: str | None,
    drawn: Sequence[Figure],
    title: str | None,
) -> str:
    said, behind = headline(groups, series)
    script, style = _asset("page.js"), _asset("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(_bundle())} {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    notes = [*comparability(groups), *_listed(unfinished(runs)), *_listed(_problems(runs))]
    body = [
        _summary(groups, series),
        *_sections(drawn, series, note),
        _settings(groups),
        _run_list(runs),
        _machines(runs),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fedhyper {escape(__version__)}">
<meta name="referrer" content="no-referrer">
<title>{escape(title or said)}</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="eyebrow">{escape(_eyebrow(runs, groups, title))}</p>
<h1>{_unbroken(escape(said))}</h1>
<p class="lead">{escape(behind)}</p>
{_notes(notes)}
</header>
<main>
<noscript><p class="notes">The charts need JavaScript; the tables below do not.</p></noscript>
{"".join(body)}
</main>
<footer>
<p>Made by fedhyper {escape(__version__)} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.
Drag a chart to move it, Ctrl + wheel or pinch to zoom, double-click to go back; click a name to hide its line.</p>
</footer>
<script type="application/json" id="page-data">{_embedded(_page_data(drawn))}</script>
<script>{_bundle()}</script>
<script>{script}</script>
</body>
</html>
"""


def _unbroken(sentence: str) -> str:
    """``88.4 ± 0.6 %`` on one line."""
    return sentence.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _eyebrow(runs: Sequence[StoredRun], groups: Sequence[Group], title: str | None) -> str:
    parts = [title] if title else []
    parts.append(f"{len(runs)} run{'s' if len(runs) != 1 else ''}")
    for key in ("task", "model"):
        values = {as_label(group.settings[key]) for group in groups if key in group.settings}
        parts += values if len(values) == 1 else []
    seeds = {as_label(run.config["seed"]) for run in runs if "seed" in run.config}
    if len(seeds) > 1:
        parts.append(f"{len(seeds)} seeds")
    return " · ".join(parts)


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes" aria-label="Notes">{items}</ul>' if notes else ""


def _listed(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MAX_LISTED
    return [*sentences[:_MAX_LISTED], *([f"… and {more} more, in the list of runs below."] if more > 0 else [])]


def _problems(runs: Sequence[StoredRun]) -> list[str]:
    # What the status already says need not be said again.
    return [
        f"{run.name}: {problem}."
        for run in runs
        for problem in run.problems
        if not problem.startswith("summary.json is m")
    ]


def _summary(groups: Sequence[Group], series: Sequence[Series]) -> str:
    every = _table((*COLUMNS, *OVERHEAD), [(row.cells, row.best) for row in headline_rows(groups)], "Results")
    if len(groups) == 1:
        return _tiles(groups[0])
    if any(one.over == "settings" for one in series):
        table = _table(SWEEP, [(cells, False) for cells in sweep_rows(series)], "Results by method")
        every = f"<details><summary>All {len(groups)} settings</summary>{every}</details>"
        return f"<section>{_heading('Results')}{table}{every}</section>"
    return f"<section>{_heading('Results')}{every}</section>"


def _tiles(group: Group) -> str:
    row = headline_rows([group])[0].cells
    seconds = sum(map(total_seconds, group.runs)) / len(group.runs)
    facts = [(name, value) for name, value in zip((*COLUMNS, *OVERHEAD), row, strict=True) if value != "–"]
    facts = [fact for fact in facts if fact[0] not in ("setting", "runs")] + [("seconds in all", f"{seconds:,.0f}")]
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="tiles">{tiles}</dl>'


def _heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _table(header: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]], name: str, kind: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = [
        f'<tr{" class=best" if best else ""}><th scope="row">{escape(cells[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells, best in rows
    ]
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _sections(drawn: Sequence[Figure], series: Sequence[Series], note: str | None) -> list[str]:
    html = []
    for section in dict.fromkeys(figure.section for figure in drawn):
        members = [(index, figure) for index, figure in enumerate(drawn) if figure.section == section]
        legend = _legend(series) if any(figure.by_series for _, figure in members) else ""
        hint = f'<p class="hint">{escape(note)}</p>' if note and legend else ""
        note = None if hint else note  # said once
        html.append(
            f"<section>{_heading(section)}{legend}{hint}"
            f'<div class="figures">{"".join(_figure(index, figure) for index, figure in members)}</div></section>'
        )
    return html


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    chips = "".join(
        f'<button type="button" class="chip s{index}" data-series="{index}" aria-pressed="true">'
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


def _settings(groups: Sequence[Group]) -> str:
    flats = [group.settings for group in groups]
    different = differing(flats)
    html = ""
    if different and len(groups) <= _MAX_LISTED:
        rows = [((key, *(as_label(flat.get(key, "–")) for flat in flats)), False) for key in different]
        html = _table(("setting", *(group.label for group in groups)), rows, "Settings that differ", "left")
    elif different:
        rows = [((key, _values(flats, key)), False) for key in different]
        html = _table(("setting", "values"), rows, "Settings that differ", "left")
    common = sorted({key for flat in flats for key in flat} - set(different) - {"seed"})
    same = _table(("setting", "value"), [((key, _values(flats, key)), False) for key in common], "Settings", "left")
    if not html and not common:
        return ""
    same = f"<details><summary>The same in all runs</summary>{same}</details>"
    return f"<section>{_heading('Settings')}{html}{same}</section>"


def _values(flats: Sequence[dict[str, Any]], key: str) -> str:
    values = list(dict.fromkeys(as_label(flat.get(key)) for flat in flats))
    return ", ".join(values[:_MAX_LISTED]) + (f" … ({len(values)} values)" if len(values) > _MAX_LISTED else "")


def _run_list(runs: Sequence[StoredRun]) -> str:
    rows = [
        (
            (
                run.name,
                as_label(run.status),
                str(run.rounds[-1]["round"]) if run.rounds else "0",
                f"{100 * accuracy:.1f}" if (accuracy := run.final_accuracy) is not None else "–",
                f"{total_seconds(run):,.0f}",
                as_label((run.summary or {}).get("weights_sha256", "–"))[:12],
                "; ".join(run.problems) or "–",
            ),
            False,
        )
        for run in runs
    ]
    table = _table(("run", "status", "rounds", "accuracy (%)", "seconds", "weights", "problems"), rows, "Runs")
    opened = " open" if len(runs) <= 3 else ""
    return f"<section>{_heading('Runs')}<details{opened}><summary>All {len(runs)}</summary>{table}</details></section>"


def _machines(runs: Sequence[StoredRun]) -> str:
    seen: dict[str, tuple[dict[str, Any], int]] = {}
    for run in runs:
        if run.env:
            env = {key: value for key, value in flatten(run.env).items() if key != "started"}
            known = json.dumps(env, sort_keys=True, default=str)
            seen[known] = (env, seen.get(known, (env, 0))[1] + 1)
    if not seen:
        return ""
    envs = list(seen.values())[:_MAX_LISTED]
    keys = list(dict.fromkeys(key for env, _ in envs for key in env))
    rows = [((key, *(as_label(env.get(key)) for env, _ in envs)), False) for key in keys]
    header = ("", *(f"{count} run{'s' if count > 1 else ''}" for _, count in envs))
    return (
        f"<section>{_heading('Versions and machine')}{_table(header, rows, 'Versions and machine', 'left')}</section>"
    )


def _page_data(drawn: Sequence[Figure]) -> dict[str, Any]:
    """Specifications without their data, and the data once, however many charts draw it."""
    from fedhyper.lab.results import charts as plots

    tables: list[plots.Rows] = []
    charts = []
    for figure in drawn:
        names = {}
        for name, rows in figure.chart.data.items():
            known = next((i for i, table in enumerate(tables) if table is rows), len(tables))
            names[name] = known
            tables += [rows] if known == len(tables) else []
        spec = figure.chart.marks.to_dict(validate=False) | {"description": figure.alt}
        charts.append({"spec": spec, "data": names, "series": figure.by_series})
    data = [_columns(rows) for rows in tables]
    return {"charts": charts, "data": data, "themes": [plots.theme(), plots.theme(dark=True)]}


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {"length": len(rows), "columns": {name: [row.get(name) for row in rows] for name in names}}


def _embedded(value: object) -> str:
    """JSON that cannot end the script element it stands in, nor be read as markup by anything."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 is \\u2028 already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _bundle() -> str:
    import vl_convert

    # A browser hashes what it parsed, so nothing may be in it that the parser changes or that ends the element.
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _asset(name: str) -> str:
    return files("fedhyper.lab.results").joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
