"""The page itself: head, notes, sections, data and the two scripts that may run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from fedhyper import __version__
from fedhyper.lab.results.comparing import comparability, unfinished
from fedhyper.lab.results.groups import Group, as_label, copies, extended, make_groups
from fedhyper.lab.results.headline import apart, headline
from fedhyper.lab.results.page.embedding import asset, bundle, embedded, page_data, script_hash
from fedhyper.lab.results.page.sections import MAX_LISTED, heading, machines, run_list, sections, summary
from fedhyper.lab.results.page.settings import settings
from fedhyper.lab.results.parts import Part
from fedhyper.lab.results.stored import StoredRun

if TYPE_CHECKING:
    from fedhyper.lab.results.figures.figure import Figure


def page(
    runs: Sequence[StoredRun],
    parts: Sequence[Part],
    drawn: Sequence[Figure],
    title: str | None,
) -> str:
    """The whole page as HTML; ``title`` stands in for the headline in the browser's tab."""
    groups = make_groups(runs)
    said, behind = headline(parts[0].groups, parts[0].series) if len(parts) == 1 else apart(parts)
    script, style = asset("page.js"), asset("page.css")
    scripts = f"{script_hash(bundle())} {script_hash(script)}"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {script_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    notes = [
        *comparability(groups),
        *copies(runs, groups),
        *extended(runs),
        *_listed(unfinished(runs)),
        *_listed(_problems(runs)),
    ]
    body = [
        *(_part(index, part, drawn, len(parts) > 1) for index, part in enumerate(parts)),
        settings(groups),
        run_list(runs),
        machines(runs),
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
<script type="application/json" id="page-data">{embedded(page_data(drawn))}</script>
<script>{bundle()}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(index: int, part: Part, drawn: Sequence[Figure], several: bool) -> str:
    """The results and figures of one part, under a heading of its own when there are others."""
    mine = [(place, figure) for place, figure in enumerate(drawn) if figure.part == index]
    level = 3 if several else 2
    body = [summary(part.groups, part.series, level), *sections(mine, part.series, part.note, level)]
    if not several:
        return "".join(body)
    said, behind = headline(part.groups, part.series)
    lead = f'<p class="lead">{_unbroken(escape(said))}. {escape(behind)}</p>'
    return f'<section class="part">{heading(part.title)}{lead}{"".join(body)}</section>'


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
    more = len(sentences) - MAX_LISTED
    return [*sentences[:MAX_LISTED], *([f"… and {more} more, in the list of runs below."] if more > 0 else [])]


def _problems(runs: Sequence[StoredRun]) -> list[str]:
    # What the status already says need not be said again.
    return [
        f"{run.name}: {problem}."
        for run in runs
        for problem in run.problems
        if not problem.startswith("summary.json is m")
    ]
