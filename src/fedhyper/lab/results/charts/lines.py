"""A line a series over rounds, seconds or bytes, with its band and the bounds it must stay in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedhyper.lab.results.charts.chart import SHOWN, Chart, Rows, colour
from fedhyper.lab.results.overlap import dashes


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
    floor: float | None = None,
    limits: Rows = (),
    level: float | None = None,
    height: int = 300,
    legend: bool = True,
    over_settings: bool = False,
) -> Chart:
    """A line a series with its band ``y_lo``..``y_hi``; ``limits`` are dashed in the colour of their series.

    ``level`` is one dashed line for all, such as a target accuracy. On a log scale values at or below zero are left
    out, or, with ``floor``, drawn at that height, as are all below it. Lines that coincide are striped. The parameter
    ``hidden`` holds the indices ``s`` of series not to draw. Drag moves, Ctrl + wheel zooms, a double click resets,
    the nearest point tells its values.
    """
    fmt = ".1%" if percent else ".4~g"
    # A log axis has a tick at every multiple of a decade and a label at some; only those deserve a line.
    quiet: Any = {"condition": {"test": "datum.label == ''", "value": 0}, "value": 1} if log else 1
    axis = alt.Axis(format=".0%" if percent else "~g", tickCount=6, gridOpacity=quiet)
    # A log scale is not rounded, for a decade more would press the lines flat; a line at its end is not cut in half.
    scale = alt.Scale(type="log", nice=False, padding=4) if log else alt.Scale(zero=False, nice=True)
    # Time and traffic from zero on: what finding the rates costs comes before the first point.
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X(
            f"{x}:Q",
            title=x_title,
            # Not "g": with a step of 200 it would write 1000 as 1e+3.
            axis=alt.Axis(format=",~f" if x != "round" else "d", tickCount=8),
            scale=alt.Scale(zero=x in ("seconds", "megabytes")),
        ),
        color=colour(labels, legend),
    )
    valid = f"isValid(datum.{y}) && isValid(datum.{x}) && {SHOWN}"
    names = (y, f"{y}_lo", f"{y}_hi")
    middle, low, high = names if floor is None else (f"{name}_drawn" for name in names)
    if floor is not None:
        base = base.transform_calculate(**{f"{name}_drawn": f"max(datum.{name}, {floor!r})" for name in names})
    elif log:
        valid += f" && datum.{y} > 0"
    zoom = alt.selection_interval(
        name="zoom", bind="scales", zoom="wheel![event.ctrlKey || event.metaKey || event.altKey]"
    )
    near = alt.selection_point(
        name="near", nearest=True, on="pointermove", clear="pointerout", fields=["s", "round"], empty=False
    )
    line = base.mark_line(strokeWidth=2, clip=True, strokeJoin="round").encode(
        y=alt.Y(f"{middle}:Q", title=y_title, axis=axis, scale=scale)
    )
    striped = dashes(rows, x, y, count=len(labels), log=log)
    if striped:
        line = line.encode(
            strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(domain=list(labels), range=striped), legend=None)
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
        .encode(y=f"{middle}:Q", opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=tooltip)
        .add_params(near)
    )
    layers: list[alt.Chart] = []
    data: dict[str, Rows] = {"rows": rows}
    if banded:
        # Bands over settings are wide and lie on each other: paler, with an edge where the bad settings end.
        edge = {"strokeWidth": 1, "opacity": 0.7, "strokeDash": [3, 2], "clip": True} if over_settings else False
        area = base.mark_area(opacity=0.08 if over_settings else 0.16, line=edge, clip=True, aria=False)
        layers.append(area.encode(y=f"{low}:Q", y2=f"{high}:Q").transform_filter(valid))
    if limits:
        data["limits"] = limits
        layers.append(
            alt.Chart(alt.NamedData("limits"))
            .mark_rule(strokeDash=[4, 4], strokeWidth=1.2, opacity=0.8, clip=True)
            .encode(y="limit:Q", color=colour(labels, legend), tooltip=[alt.Tooltip("limit:Q", title="bound")])
            .transform_filter(SHOWN)
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
