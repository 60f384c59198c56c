"""Figures over rounds, seconds and bytes: accuracy, loss, rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedhyper.lab.results.charts.chart import Rows
from fedhyper.lab.results.charts.lines import line_chart
from fedhyper.lab.results.curves import bound_rows
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.series import Series


@dataclass(frozen=True)
class _Line:
    section: str
    field: str
    x: str
    title: str
    y_title: str
    percent: bool = False
    log: bool = False


_AXES = {"round": "round", "seconds": "seconds", "megabytes": "megabytes sent"}
_LINES = (
    _Line("Accuracy", "accuracy", "round", "Test accuracy by round", "test accuracy", percent=True),
    _Line("Accuracy", "accuracy", "seconds", "Test accuracy by time", "test accuracy", percent=True),
    _Line("Accuracy", "accuracy", "megabytes", "Test accuracy by traffic", "test accuracy", percent=True),
    _Line("Loss", "test_loss", "round", "Test loss by round", "test loss"),
    _Line("Loss", "train_loss", "round", "Training loss by round", "training loss"),
    _Line("Loss", "test_loss", "seconds", "Test loss by time", "test loss"),
    _Line("Loss", "test_loss", "megabytes", "Test loss by traffic", "test loss"),
    _Line("Learning rates", "global_lr", "round", "Global rate", "global_lr", log=True),
    _Line("Learning rates", "local_lr", "round", "Local rate", "local_lr", log=True),
    _Line("Learning rates", "cosine", "round", "Cosine of successive updates", "cosine"),
    _Line("Learning rates", "hypergrad", "round", "Hypergradient", "hypergradient"),
)
_CAPTIONS = {
    "global_lr": "Log scale. Dashed: the bounds the rate must stay in.",
    "local_lr": "Log scale. Dashed: the bounds. A band runs from the slowest to the fastest client.",
    "cosine": "Above zero, a round went on in the direction of the last one; below, it turned back.",
    "hypergrad": "Above zero raises the rate, below zero lowers it.",
}


def curve_figures(rows: Rows, series: Sequence[Series], legend: bool) -> Iterator[Figure]:
    """A figure for every line of ``_LINES`` that these runs have numbers for."""
    labels = [one.label for one in series]
    targets = {run.target_accuracy for one in series for run in one.runs}
    target = targets.pop() if len(targets) == 1 else None
    for line in _LINES:
        values = [row[line.field] for row in rows if line.field in row and row.get(line.x) is not None]
        if not values or (line.x != "round" and not any(row.get(line.x) for row in rows)):
            continue
        limits = bound_rows(series, line.field) if line.field in ("global_lr", "local_lr") else []
        caption = _CAPTIONS.get(line.field, "") if limits or not line.log else "Log scale."
        if line.percent and target is not None:
            caption = f"Dotted: the target, {target:.0%}."
        # A diverging loss would press every other line onto the axis.
        spread = line.field.endswith("loss") and min(values) > 0 and max(values) > 50 * min(values)
        positive = [value for value in values if value > 0]
        if line.log and not positive:
            continue
        chart = line_chart(
            rows,
            labels,
            line.x,
            line.field,
            x_title=_AXES[line.x],
            y_title=line.y_title,
            percent=line.percent,
            log=line.log or spread,
            limits=limits,
            level=target if line.percent else None,
            height=340 if line.percent and line.x == "round" else 240,
            legend=legend,
            over_settings=any(one.over == "settings" for one in series),
        )
        yield Figure(
            key=f"{line.field.replace('_', '-')}-by-{line.x}",
            section=line.section,
            title=line.title,
            caption=caption,
            alt=_alt(line, rows, labels),
            chart=chart,
            wide=line.percent and line.x == "round",
        )


def _alt(line: _Line, rows: Rows, labels: Sequence[str]) -> str:
    last = {row["s"]: row[line.field] for row in rows if line.field in row}
    ends = [
        f"{label} {last[index]:.1%}" if line.percent else f"{label} {last[index]:.3g}"
        for index, label in enumerate(labels)
        if index in last
    ]
    return f"Line chart, {line.title.lower()}. Last values: {'; '.join(ends)}."
