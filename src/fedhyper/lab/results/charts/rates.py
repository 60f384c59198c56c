"""Final accuracy over the initial rates: a line for one of them, a map for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedhyper.lab.results.charts.chart import ROW, Chart, Rows, colour


def rate_chart(rows: Rows, labels: Sequence[str], *, x_title: str, y_title: str = "final test accuracy") -> Chart:
    """``accuracy`` (a fraction) with its band against ``rate`` on a log scale, a line a series."""
    # Vega would label 0.001, 0.002, 0.01, 0.02: the rates that were run say more.
    rates = sorted({row["rate"] for row in rows})
    ticks: Any = {"tickCount": 6} if len(rates) > 10 else {"values": rates}
    base = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X("rate:Q", title=x_title, scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", **ticks)),
        color=colour(labels, True),
    )
    axis = alt.Axis(format=".0%", tickCount=6)
    marks = alt.layer(
        base.mark_area(opacity=0.16, aria=False).encode(y="accuracy_lo:Q", y2="accuracy_hi:Q"),
        base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=60)).encode(
            y=alt.Y("accuracy:Q", title=y_title, axis=axis),
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
    marks = alt.layer(cells, words).properties(width="container", height=ROW * len(globals_))
    return Chart(marks, {"rows": rows})
