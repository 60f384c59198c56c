"""One self-contained page of a set of runs, and the same figures as files.

Everything a config or log says is escaped where it enters: ``html.escape`` in markup, ``\\uXXXX`` for the characters
that could end a script element in embedded JSON. Behind that stands a content security policy that lets exactly the
two scripts of this page run (by their hash), forbids ``eval``, and allows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhyper.errors import UserError
from fedhyper.lab.results.page.document import page
from fedhyper.lab.results.parts import Part, make_parts
from fedhyper.lab.results.stored import load_runs
from fedhyper.storage.files import write_new

if TYPE_CHECKING:
    from fedhyper.lab.results.figures.figure import Figure

FORMATS = ("png", "svg", "pdf")


def write_report(paths: Sequence[Path], out: Path, *, title: str | None = None) -> Path:
    """Write the page of all runs under ``paths`` to ``out``, whole or not at all, and return ``out``."""
    # Here, because charts ask for the [report] extra, and a run without it must still be able to say so.
    from fedhyper.lab.results.figures.make import part_figures

    runs = load_runs(paths)
    parts = make_parts(runs)
    return write_new(Path(out), page(runs, parts, part_figures(parts, legend=False), title))


def write_figures(paths: Sequence[Path], directory: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Every figure of the page as a file in ``directory``, once a format; returns the files written."""
    from fedhyper.lab.results.charts.chart import save
    from fedhyper.lab.results.figures.make import part_figures

    for unknown in set(formats) - set(FORMATS):
        raise UserError(f"figure format {unknown!r} is unknown; use {', '.join(FORMATS)}")
    parts = make_parts(load_runs(paths))
    drawn = part_figures(parts, legend=any(len(part.series) > 1 for part in parts))
    return [
        save(figure.chart, Path(directory) / f"{figure.key}.{suffix}", title=_titled(figure, parts))
        for figure in drawn
        for suffix in formats
    ]


def _titled(figure: Figure, parts: Sequence[Part]) -> str:
    of = parts[figure.part].title
    return f"{figure.title} ({of})" if of else figure.title
