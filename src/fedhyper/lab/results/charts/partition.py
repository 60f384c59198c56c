"""Who holds what, drawn."""

from __future__ import annotations

from typing import Any

import altair as alt

from fedhyper.errors import UserError
from fedhyper.lab.results.charts.chart import Chart

_MANY_CLIENTS = 150
_MANY_CLASSES = 20


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
                    "label:N",
                    title="class",
                    sort="ascending",
                    # Classes have no order, so neighbours must not look alike, as they do in viridis.
                    scale=alt.Scale(scheme="tableau10" if max(map(len, counts)) <= 10 else "tableau20"),
                    legend=alt.Legend(orient="top", direction="horizontal", columns=5, symbolType="square"),
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
