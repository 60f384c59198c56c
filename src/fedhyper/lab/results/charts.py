"""Altair charts: one specification for the page in a browser and for PNG, SVG and PDF without one.

No string of a config or log is ever a field name or part of an expression: Vega reads ``a.b`` and ``a[b]`` in field
names as paths, and expressions are code. Such strings are data values and titles, where they are only text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedhyper.errors import UserError
from fedhyper.storage.files import write_new

try:
    import altair as alt
    import vl_convert
except ModuleNotFoundError as error:
    raise UserError(f"reports need {error.name}, which is not installed; pip install 'fedhyper[report]'") from error

Rows: TypeAlias = Sequence[dict[str, Any]]

# Okabe and Ito's palette, which people with any colour vision can tell apart; strongest against the ground first.
# Black and yellow vanish on a dark and on a white ground, so each theme has the one that it can show.
_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_DARK = ("#56B4E9", "#E69F00", "#2CC295", "#CC79A7", "#F0E442", "#F28444", "#FFFFFF", "#999999")
_SHOWN = "indexof(hidden, datum.s) < 0"
_MANY_CLIENTS = 150
_MANY_CLASSES = 20
STATIC_WIDTH = 640
_ROW = 34  # height of a bar with its gap; Vega-Lite warns about steps beside a width that follows the page
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
        "axisX": {"grid": False, "domain": True, "domainColor": grid},
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
            content = vl_convert.vegalite_to_svg(spec).encode()
        case ".pdf":
            content = vl_convert.vegalite_to_pdf(spec)
        case other:
            raise UserError(f"figure {path.name} has the suffix {other!r}; use .png, .svg or .pdf")
    return write_new(path, content)


def line_chart(
    rows: Rows,
    labels: Sequence[str],
    x: str,
    y: str,
    *,
    x_title: str,
    y_title: str,
    percent: bool = False,
    log: bool = False,
    limits: Rows = (),
    level: float | None = None,
    height: int = 300,
    legend: bool = True,
    over_settings: bool = False,
) -> Chart:
    """A line a series with its band ``y_lo``..``y_hi``; ``limits`` are dashed in the colour of their series.

    ``level`` is one dashed line for all, such as a target accuracy. The parameter ``hidden`` holds the indices ``s``
    of series not to draw. Drag moves, Ctrl + wheel zooms, a double click resets, the nearest point tells its values.
    """
    fmt = ".1%" if percent else ".4~g"
    # A log axis has a tick at every multiple of a decade and a label at some; only those deserve a line.
    quiet: Any = {"condition": {"test": "datum.label == ''", "value": 0}, "value": 1} if log else 1
    axis = alt.Axis(format=".0%" if percent else "~g", tickCount=6, gridOpacity=quiet)
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False, nice=True)
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X(f"{x}:Q", title=x_title, axis=alt.Axis(format="~g" if x != "round" else "d", tickCount=8)),
        color=_colour(labels, legend),
    )
    valid = f"isValid(datum.{y}) && isValid(datum.{x}) && {_SHOWN}" + (f" && datum.{y} > 0" if log else "")
    zoom = alt.selection_interval(
        name="zoom", bind="scales", zoom="wheel![event.ctrlKey || event.metaKey || event.altKey]"
    )
    near = alt.selection_point(
        name="near", nearest=True, on="pointermove", clear="pointerout", fields=["s", "round"], empty=False
    )
    line = base.mark_line(strokeWidth=2, clip=True, strokeJoin="round").encode(
        y=alt.Y(f"{y}:Q", title=y_title, axis=axis, scale=scale)
    )
    tooltip = [
        alt.Tooltip("series:N", title="series"),
        alt.Tooltip("round:Q", title="round"),
        alt.Tooltip(f"{y}:Q", title=y_title, format=fmt),
    ]
    if x != "round":
        tooltip.insert(2, alt.Tooltip(f"{x}:Q", title=x_title, format=".4~g"))
    banded = any(f"{y}_lo" in row for row in rows)
    if banded:
        tooltip += [
            alt.Tooltip(f"{y}_lo:Q", title="from", format=fmt),
            alt.Tooltip(f"{y}_hi:Q", title="to", format=fmt),
            alt.Tooltip("runs:Q", title="runs"),
        ]
    dots = (
        base.mark_point(filled=True, size=60, clip=True, aria=False)
        .encode(y=f"{y}:Q", opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tooltip)
        .add_params(near)
    )
    layers: list[alt.Chart] = []
    data: dict[str, Rows] = {"rows": rows}
    if banded:
        # Bands over settings are wide and lie on each other: paler, with an edge where the bad settings end.
        edge = {"strokeWidth": 1, "opacity": 0.7, "strokeDash": [3, 2], "clip": True} if over_settings else False
        area = base.mark_area(opacity=0.08 if over_settings else 0.16, line=edge, clip=True, aria=False)
        layers.append(area.encode(y=f"{y}_lo:Q", y2=f"{y}_hi:Q").transform_filter(valid))
    if limits:
        data["limits"] = limits
        layers.append(
            alt.Chart(alt.NamedData("limits"))
            .mark_rule(strokeDash=[4, 4], strokeWidth=1.2, opacity=0.8, clip=True)
            .encode(y="limit:Q", color=_colour(labels, legend), tooltip=[alt.Tooltip("limit:Q", title="bound")])
            .transform_filter(_SHOWN)
        )
    if level is not None:
        data["level"] = [{"level": level}]
        layers.append(
            alt.Chart(alt.NamedData("level"))
            .mark_rule(strokeDash=[2, 4], clip=True)
            .encode(y="level:Q", tooltip=[alt.Tooltip("level:Q", title="target", format=fmt)])
        )
    layers += [line.add_params(zoom).transform_filter(valid), dots.transform_filter(valid)]
    marks = (
        alt.layer(*layers).add_params(alt.param(name="hidden", value=[])).properties(width="container", height=height)
    )
    return Chart(marks, data)


def _colour(labels: Sequence[str], legend: bool) -> alt.Color:
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


def bar_chart(rows: Rows, labels: Sequence[str], *, x_title: str) -> Chart:
    """A bar a series: ``value`` with ``lo``..``hi``, and ``text`` at its end, which says so when there is no bar."""
    base = alt.Chart(alt.NamedData("rows")).encode(
        y=alt.Y("series:N", sort=list(labels), title=None, axis=alt.Axis(labelLimit=180)),
    )
    room = max((float(row.get("hi") or row["end"]) for row in rows), default=1.0) * 1.25 or 1.0
    bars = base.mark_bar(height=16).encode(
        x=alt.X("value:Q", title=x_title, axis=alt.Axis(grid=True, tickCount=6), scale=alt.Scale(domain=[0, room])),
        color=_colour(labels, False),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("text:N", title=x_title)],
    )
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="lo:Q", x2="hi:Q")
    words = base.mark_text(align="left", dx=8).encode(x="end:Q", text="text:N")
    marks = (
        alt.layer(bars, whiskers, words)
        .transform_filter(_SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=_ROW * len(labels))
    )
    return Chart(marks, {"rows": rows})


def strip_chart(rows: Rows, labels: Sequence[str], *, x_title: str) -> Chart:
    """A tick for every ``value`` (a fraction), a row for every series."""
    marks: alt.Chart = (
        alt.Chart(alt.NamedData("rows"))
        .mark_tick(opacity=0.45, thickness=1.5, aria=False)
        .encode(
            x=alt.X("value:Q", title=x_title, axis=alt.Axis(format=".0%", tickCount=8), scale=alt.Scale(zero=False)),
            y=alt.Y("series:N", sort=list(labels), title=None, axis=alt.Axis(labelLimit=180)),
            color=_colour(labels, False),
            tooltip=[alt.Tooltip("series:N"), alt.Tooltip("value:Q", title="accuracy", format=".1%")],
        )
        .transform_filter(_SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=_ROW * len(labels))
    )
    return Chart(marks, {"rows": rows})


def event_chart(rows: Rows, labels: Sequence[str]) -> Chart:
    """What the guard did: ``event`` is ``rejected`` or ``rollback``, at ``round``, ``count`` times, for ``reasons``."""
    marks: alt.Chart = (
        alt.Chart(alt.NamedData("rows"))
        .mark_point(filled=True, opacity=0.75, aria=False)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickCount=8)),
            y=alt.Y("series:N", sort=list(labels), title=None, axis=alt.Axis(labelLimit=180)),
            yOffset=alt.YOffset("event:N", sort=["rejected", "rollback"]),
            size=alt.Size("count:Q", legend=None, scale=alt.Scale(range=[40, 260])),
            shape=alt.Shape(
                "event:N",
                scale=alt.Scale(domain=["rejected", "rollback"], range=["circle", "triangle-left"]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            color=_colour(labels, False),
            tooltip=[
                alt.Tooltip("series:N"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("event:N"),
                alt.Tooltip("count:Q", title="how many"),
                alt.Tooltip("reasons:N"),
            ],
        )
        .transform_filter(_SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=_ROW * len({row["series"] for row in rows}))
    )
    return Chart(marks, {"rows": rows})


def rate_chart(rows: Rows, labels: Sequence[str], *, x_title: str) -> Chart:
    """``accuracy`` (a fraction) with its band against ``rate`` on a log scale, a line a series."""
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X("rate:Q", title=x_title, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", tickCount=6)),
        color=_colour(labels, True),
    )
    axis = alt.Axis(format=".0%", tickCount=6)
    marks = alt.layer(
        base.mark_area(opacity=0.16, aria=False).encode(y="accuracy_lo:Q", y2="accuracy_hi:Q"),
        base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=60)).encode(
            y=alt.Y("accuracy:Q", title="final test accuracy", axis=axis),
            tooltip=[
                alt.Tooltip("series:N"),
                alt.Tooltip("rate:Q", title=x_title, format="~g"),
                alt.Tooltip("accuracy:Q", format=".1%"),
                alt.Tooltip("runs:Q"),
            ],
        ),
    ).properties(width="container", height=280)
    return Chart(marks, {"rows": rows})


def heat_map(rows: Rows, *, gain: bool, domain: tuple[float, float]) -> Chart:
    """``value`` over the initial rates, written into each cell; a gain is in points around zero, else a fraction."""
    scale = (
        alt.Scale(scheme="blueorange", domain=[domain[0], 0, domain[1]], reverse=True)
        if gain
        else alt.Scale(scheme="viridis", domain=list(domain))
    )
    # Sorted here by size: to Vega the rates are names, for no scale has room for 0.0001 and 10.
    locals_, globals_ = (sorted({str(row[key]) for row in rows}, key=float) for key in ("local", "global"))
    gap = alt.Scale(paddingInner=0.04)
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X("local:O", title="initial local rate", sort=locals_, axis=alt.Axis(labelAngle=0), scale=gap),
        y=alt.Y("global:O", title="initial global rate", sort=globals_[::-1], scale=gap),
        tooltip=[
            alt.Tooltip("local:N", title="local_lr"),
            alt.Tooltip("global:N", title="global_lr"),
            alt.Tooltip("text:N", title="gain in points" if gain else "accuracy in %"),
            alt.Tooltip("runs:Q", title="runs"),
        ],
    )
    cells = base.mark_rect(cornerRadius=3).encode(color=alt.Color("value:Q", scale=scale, legend=None))
    words = base.mark_text(fontSize=12).encode(
        text="text:N", color=alt.condition("datum.bright", alt.value("#111111"), alt.value("#ffffff"))
    )
    marks = alt.layer(cells, words).properties(width="container", height=_ROW * len(globals_))
    return Chart(marks, {"rows": rows})


def partition_chart(partition: dict[str, Any]) -> Chart:
    """Who holds what: a bar a client, stacked by class; with very many clients or no classes, how sizes spread.

    ``partition`` is the content of a run's ``partition.json``: ``sizes``, and ``class_counts`` if data has labels.
    """
    counts, sizes = partition.get("class_counts"), partition.get("sizes")
    if not isinstance(sizes, list) or not sizes:
        raise UserError("partition has no sizes; pass the content of a run's partition.json")
    marks: alt.Chart
    few = isinstance(counts, list) and 0 < len(counts) <= _MANY_CLIENTS
    if few and isinstance(counts, list) and max(len(row) for row in counts) <= _MANY_CLASSES:
        rows = [
            {"client": client, "label": label, "examples": n}
            for client, row in enumerate(counts)
            for label, n in enumerate(row)
            if n
        ]
        marks = (
            alt.Chart(alt.NamedData("rows"))
            .mark_bar(cornerRadiusEnd=0, aria=False)
            .encode(
                x=alt.X("client:O", axis=alt.Axis(labelOverlap=True, labelAngle=0), scale=alt.Scale(padding=0.15)),
                y=alt.Y("examples:Q", title="examples", axis=alt.Axis(tickCount=5, format="~s")),
                color=alt.Color(
                    "label:O",
                    title="class",
                    scale=alt.Scale(scheme="viridis"),
                    legend=alt.Legend(orient="top", direction="horizontal", columns=10, symbolType="square"),
                ),
                order=alt.Order("label:O"),
                tooltip=["client:O", alt.Tooltip("label:O", title="class"), "examples:Q"],
            )
            .properties(width="container", height=240)
        )
        return Chart(marks, {"rows": rows})
    marks = (
        alt.Chart(alt.NamedData("rows"))
        .mark_bar(aria=False)
        .encode(
            x=alt.X("examples:Q", bin=alt.Bin(maxbins=40), title="examples of a client"),
            y=alt.Y("count()", title="clients"),
            tooltip=[alt.Tooltip("examples:Q", bin=alt.Bin(maxbins=40)), alt.Tooltip("count()", title="clients")],
        )
        .properties(width="container", height=240)
    )
    return Chart(marks, {"rows": [{"examples": n} for n in sizes]})
