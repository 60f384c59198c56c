"""Charts with a row a series: bars, ticks, and what the guard did when."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedhyper.lab.results.charts.chart import ROW, SHOWN, Chart, Rows, colour


def bar_chart(rows: Rows, labels: Sequence[str], *, x_title: str) -> Chart:
    """A bar a series: ``value`` with ``lo``..``hi``, and ``text`` at its end, which says so when there is no bar."""
    base = alt.Chart(alt.NamedData("rows")).encode(
        y=alt.Y("series:N", sort=list(labels), title=None, axis=alt.Axis(labelLimit=180)),
    )
    room = max((float(row.get("hi") or row["end"]) for row in rows), default=1.0) * 1.5 or 1.0
    bars = base.mark_bar(height=16).encode(
        x=alt.X("value:Q", title=x_title, axis=alt.Axis(grid=True, tickCount=6), scale=alt.Scale(domain=[0, room])),
        color=colour(labels, False),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("text:N", title=x_title)],
    )
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="lo:Q", x2="hi:Q")
    words = base.mark_text(align="left", dx=8).encode(x="end:Q", text="text:N")
    marks = (
        alt.layer(bars, whiskers, words)
        .transform_filter(SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=ROW * len(labels))
    )
    return Chart(marks, {"rows": rows})


def strip_chart(rows: Rows, labels: Sequence[str], *, x_title: str) -> Chart:
    """A tick for every ``value`` (a fraction), a row for every series."""
    marks: alt.Chart = (
        alt.Chart(alt.NamedData("rows"))
        .mark_tick(opacity=0.45, thickness=1.5, aria=False)
        .encode(
            x=alt.X(
                "value:Q",
                title=x_title,
                axis=alt.Axis(format=".0%", tickCount=8, tickMinStep=0.01),
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("series:N", sort=list(labels), title=None, axis=alt.Axis(labelLimit=180)),
            color=colour(labels, False),
            tooltip=[alt.Tooltip("series:N"), alt.Tooltip("value:Q", title="accuracy", format=".1%")],
        )
        .transform_filter(SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=ROW * len(labels))
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
            color=colour(labels, False),
            tooltip=[
                alt.Tooltip("series:N"),
                alt.Tooltip("round:Q"),
                alt.Tooltip("event:N"),
                alt.Tooltip("count:Q", title="how many"),
                alt.Tooltip("reasons:N"),
            ],
        )
        .transform_filter(SHOWN)
        .add_params(alt.param(name="hidden", value=[]))
        .properties(width="container", height=ROW * len({row["series"] for row in rows}))
    )
    return Chart(marks, {"rows": rows})
