"""Figures over rounds, seconds and bytes: accuracy, loss, rates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fedhyper.lab.results.charts.chart import Rows
from fedhyper.lab.results.charts.lines import line_chart
from fedhyper.lab.results.curves import bound_rows, clients_differ
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.metrics import percent
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

    @property
    def key(self) -> str:
        return f"{self.field.replace('_', '-')}-by-{self.x}"


_AXES = {"round": "round", "seconds": "seconds", "megabytes": "MB sent and received", "epsilon": "ε spent"}
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
    _Line("Privacy", "epsilon", "round", "ε spent by round", "ε"),
    _Line("Privacy", "accuracy", "epsilon", "Test accuracy by ε", "test accuracy", percent=True),
)
_CAPTIONS = {
    "cosine": "Of a round's mean update and the one before: above zero it went on that way, below it turned back.",
    "hypergrad": "What moves the rate: above zero it is raised, below lowered, as far as its limits allow.",
    "epsilon": "What one client's part in the run may have told so far; lower is more private.",
}


def curve_figures(
    rows: Rows, series: Sequence[Series], legend: bool, only: Collection[str] | None = None
) -> Iterator[Figure]:
    """A figure for every line of ``_LINES`` that these runs have numbers for, or for those whose key is in ``only``."""
    labels = [one.label for one in series]
    targets = {run.target_accuracy for one in series for run in one.runs}
    target = targets.pop() if len(targets) == 1 else None
    for line in _LINES:
        if only is not None and line.key not in only:
            continue
        values = [row[line.field] for row in rows if line.field in row and row.get(line.x) is not None]
        if not values or (line.x != "round" and not any(row.get(line.x) for row in rows)):
            continue
        limits = bound_rows(series, line.field) if line.field in ("global_lr", "local_lr") else []
        if line.log and max(values) <= 0:
            continue
        floor = _floor(values) if line.field.endswith("loss") else None
        said = [_CAPTIONS.get(line.field, "")]
        if line.log or floor:
            said.append("Log scale.")
        if floor and min(values) < floor:
            said.append(f"Values below {floor:.1g} are drawn at the bottom.")
        if limits:
            said.append(f"Dashed: the bounds of {', '.join(dict.fromkeys(row['series'] for row in limits))}.")
        if line.percent and target is not None:
            said.append(f"Dotted: the target, {percent(target, 0)}.")
        said.append(_band_words(line.field, rows, series))
        chart = line_chart(
            rows,
            labels,
            line.x,
            line.field,
            x_title=_AXES[line.x],
            y_title=line.y_title,
            percent=line.percent,
            log=line.log or floor is not None,
            floor=floor,
            limits=limits,
            level=target if line.percent else None,
            height=340 if line.percent and line.x == "round" else 240,
            legend=legend,
            over_settings=any(one.over == "settings" for one in series),
        )
        yield Figure(
            key=line.key,
            section=line.section,
            title=line.title,
            caption=" ".join(filter(None, said)),
            alt=_alt(line, rows, labels),
            chart=chart,
            wide=line.percent and line.x == "round",
        )


def _floor(values: Sequence[float]) -> float | None:
    """Where a log axis of losses begins; None where an ordinary axis shows them all.

    A loss that diverges would press every other line onto an ordinary axis, and one that ends near zero would stretch a
    log axis over decades in which nothing is.
    """
    positive = sorted(value for value in values if value > 0)
    if not positive or positive[-1] <= 50 * (low := positive[len(positive) // 50]):
        return None
    return float(f"{max(low / 2, positive[len(positive) // 4] * 1e-3):.1g}")


def _band_words(field: str, rows: Rows, series: Sequence[Series]) -> str:
    if not any(f"{field}_lo" in row for row in rows):
        return ""
    if any(one.over == "settings" for one in series):
        return "Band: the 10th to the 90th percentile of the settings."
    if field == "local_lr" and any(clients_differ(run) for one in series for run in one.runs):
        return "Band: from the slowest to the fastest client, where clients differ."
    return "Band: one standard deviation over seeds."


def _alt(line: _Line, rows: Rows, labels: Sequence[str]) -> str:
    last = {row["s"]: row[line.field] for row in rows if line.field in row}
    ends = [
        f"{label} {percent(last[index])}" if line.percent else f"{label} {last[index]:.3g}"
        for index, label in enumerate(labels)
        if index in last
    ]
    return f"Line chart, {line.title.lower()}. Last values: {'; '.join(ends)}."
