"""The chart: a dot a setting, its distance from the rival, an axis a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from fedhyper.lab.results.charts.chart import ROW, STATIC_WIDTH, Chart, save

_TITLE = "fedhyper minus its rival, points of accuracy"
_CLIP = 12.0  # points; what lies beyond is drawn at the edge


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the chart; nothing without rows."""
    if not rows:
        return
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    shown = [row | {"at": max(-_CLIP, min(_CLIP, row["difference"]))} for row in rows]
    kinds = ["target met", "a target missed"]
    ends = [min(-3.0, *(row["at"] for row in shown)), max(3.0, *(row["at"] for row in shown))]
    dots = (
        alt.Chart(alt.NamedData("rows"))
        .mark_circle(size=70, opacity=0.6)
        .encode(
            x=alt.X(
                "at:Q", title=_TITLE, axis=alt.Axis(grid=True, tickCount=10), scale=alt.Scale(domain=ends, nice=True)
            ),
            y=alt.Y("axis:N", sort=axes, title=None, axis=alt.Axis(labelLimit=240)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=kinds), legend=alt.Legend(title=None, orient="top")),
        )
    )
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(strokeWidth=1.5).encode(x="at:Q")
    marks = alt.layer(zero, dots).properties(width=STATIC_WIDTH, height=ROW * len(axes))
    save(Chart(marks, {"rows": shown, "zero": [{"at": 0.0}]}), path)
