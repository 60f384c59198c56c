"""Altair charts: one specification for the page in a browser and for PNG, SVG and PDF without one.

No string of a config or log is ever a field name or part of an expression: Vega reads ``a.b`` and ``a[b]`` in field
names as paths, and expressions are code. Such strings are data values and titles, where they are only text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from fedhyper.errors import UserError
from fedhyper.storage.files import write_new

Rows: TypeAlias = Sequence[dict[str, Any]]

# Okabe and Ito's palette, which people with any colour vision can tell apart; strongest against the ground first.
# Black and yellow vanish on a dark and on a white ground, so each theme has the one that it can show.
_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_DARK = ("#56B4E9", "#E69F00", "#2CC295", "#CC79A7", "#F0E442", "#F28444", "#FFFFFF", "#999999")
SHOWN = "indexof(hidden, datum.s) < 0"
STATIC_WIDTH = 640
ROW = 34  # height of a bar with its gap; Vega-Lite warns about steps beside a width that follows the page
MAX_COLOURS = len(_LIGHT)


@dataclass(frozen=True)
class Chart:
    """An Altair chart with its data beside it, by name: Altair would copy rows at every step of building a chart.

    Charts that draw the same rows hold the same object, so that a page can store it once.
    """

    marks: alt.typing.ChartType
    data: dict[str, Rows]

    def to_dict(self) -> dict[str, Any]:
        """The complete Vega-Lite specification, as any Vega-Lite renderer takes it."""
        spec: dict[str, Any] = self.marks.to_dict(validate=False)
        return spec | {"datasets": {name: list(rows) for name, rows in self.data.items()}}


def theme(dark: bool = False) -> dict[str, Any]:
    """A Vega-Lite config: quiet axes, the palette, a ground that matches the page's."""
    ink, faint, grid, ground = (
        ("#e8eaed", "#9aa0a8", "#2b3038", "#14171c") if dark else ("#1b1f24", "#6a737d", "#e9ecef", "#ffffff")
    )
    font = "-apple-system, 'Segoe UI', Roboto, 'Noto Sans', Ubuntu, 'Liberation Sans', Arial, sans-serif"
    return {
        "background": ground,
        "font": font,
        "view": {"stroke": None},
        "axis": {
            "domain": False,
            "ticks": False,
            "gridColor": grid,
            "labelColor": faint,
            "titleColor": faint,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelPadding": 6,
            "titlePadding": 10,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": grid, "labelSeparation": 8},
        "axisBand": {"grid": False},
        "legend": {"labelColor": ink, "titleColor": faint, "labelFontSize": 12, "titleFontWeight": "normal"},
        "title": {"color": ink, "anchor": "start", "fontSize": 14, "fontWeight": 600, "offset": 12},
        "text": {"color": ink, "fontSize": 12},
        "rule": {"color": faint},
        "bar": {"cornerRadiusEnd": 2},
        "range": {"category": list(_DARK if dark else _LIGHT)},
    }


def save(chart: Chart, path: Path, *, title: str | None = None) -> Path:
    """Write ``chart`` to ``path`` as its suffix says: ``.png`` (2x), ``.svg`` or ``.pdf``, in the light theme."""
    spec = chart.to_dict()
    if spec.get("width") == "container":
        spec["width"] = STATIC_WIDTH
    if title is not None:
        spec["title"] = title
    spec |= {"config": theme(), "padding": 12}
    match path.suffix.lower():
        case ".png":
            content = vl_convert.vegalite_to_png(spec, scale=2)
        case ".svg":
            content = _renumbered(vl_convert.vegalite_to_svg(spec)).encode()
        case ".pdf":
            content = vl_convert.vegalite_to_pdf(spec)
        case other:
            raise UserError(f"figure {path.name} has the suffix {other!r}; use .png, .svg or .pdf")
    return write_new(path, content)


def _renumbered(svg: str) -> str:
    """The same picture, whatever was drawn before it: the renderer counts its clip paths on from one to the next."""
    numbers: dict[str, int] = {}
    return re.sub(
        r'((?<=url\(#clip)|(?<=<clipPath id="clip))\d+',
        lambda found: str(numbers.setdefault(found[0], len(numbers))),
        svg,
    )


def colour(labels: Sequence[str], legend: bool) -> alt.Color:
    """The colour of a series, the same in every chart; ``legend`` puts the names above it."""
    # Opaque symbols: they would take on the faintness of the bands and of the dots nobody points at.
    shown = (
        alt.Legend(
            title=None,
            orient="top",
            columns=3,
            labelLimit=300,
            symbolType="stroke",
            symbolOpacity=1,
            symbolStrokeWidth=3,
        )
        if legend
        else None
    )
    return alt.Color("series:N", scale=alt.Scale(domain=list(labels)), legend=shown)
