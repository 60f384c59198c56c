"""Figures of clients and of single events: rounds to a target, accuracy by client, the guard, who holds what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedhyper.lab.results.charts.partition import partition_chart
from fedhyper.lab.results.charts.rows import bar_chart, event_chart, strip_chart
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.groups import Group, as_label
from fedhyper.lab.results.metrics import Stat, number, percent, quantile
from fedhyper.lab.results.series import Series
from fedhyper.lab.results.stored import StoredRun

_MAX_TICKS = 300


def target_figure(series: Sequence[Series]) -> Iterator[Figure]:
    """Rounds to the target accuracy, a bar a series; nothing for one run, without a target, or with different ones."""
    aims = {run.target_accuracy for one in series for run in one.runs} - {None}
    if len(aims) != 1 or sum(len(one.runs) for one in series) == 1:  # of one run the tiles say it
        return
    rows = []
    for index, one in enumerate(series):
        runs = [run for group in one.groups for run in group.results]
        stat = Stat.of(hit[0] for run in runs if (hit := run.to_target()))
        row: dict[str, Any] = {"s": index, "series": one.label, "end": 0.0}
        if stat is None:
            row["text"] = "not reached"
        else:
            row |= {"value": stat.mean, "end": stat.mean + (stat.std or 0.0), "text": f"{stat.mean:.0f}"}
            if stat.std is not None:
                row |= {"lo": max(0.0, stat.mean - stat.std), "hi": stat.mean + stat.std}
            if stat.n < len(runs):
                row["text"] += f" ({stat.n} of {len(runs)})"
        rows.append(row)
    if all("value" not in row for row in rows):
        return
    target = next(aim for aim in aims if aim is not None)
    words = "; ".join(f"{row['series']} {row['text']}" for row in rows)
    several = (
        "Mean over the runs that reach it, and how many of them do if not all; the whisker is one standard deviation."
    )
    yield Figure(
        "rounds-to-target",
        "Rounds to target",
        f"Rounds to {percent(target, 0)} test accuracy",
        several if any(len(one.runs) > 1 for one in series) else "",
        f"Bar chart, rounds to {percent(target, 0)} accuracy: {words}.",
        bar_chart(rows, [one.label for one in series], x_title="rounds"),
        wide=True,
    )


def client_figure(series: Sequence[Series]) -> Iterator[Figure]:
    """Accuracy on each client's own data, a tick a client; nothing where it was not measured."""
    rows: list[dict[str, Any]] = []
    for index, one in enumerate(series):
        values = [v for run in one.runs for v in _last_client_accuracy(run)]
        if len(values) > _MAX_TICKS:
            values = [quantile(values, i / (_MAX_TICKS - 1)) for i in range(_MAX_TICKS)]
        rows += [{"s": index, "series": one.label, "value": round(value, 4)} for value in values]
    if rows:
        worst = "; ".join(
            f"{one.label} {percent(min(row['value'] for row in rows if row['s'] == i), 0)}"
            for i, one in enumerate(series)
            if any(row["s"] == i for row in rows)
        )
        yield Figure(
            "client-accuracy",
            "Clients",
            "Accuracy on each client's own data",
            "One tick a client, at the last round where clients were measured.",
            f"Strip chart of accuracy by client. Lowest: {worst}.",
            strip_chart(rows, [one.label for one in series], x_title="accuracy"),
            wide=True,
        )


def _last_client_accuracy(run: StoredRun) -> list[float]:
    return next((r["client_accuracy"] for r in reversed(run.rounds) if r["client_accuracy"]), [])


def guard_figure(series: Sequence[Series]) -> Iterator[Figure]:
    """Rejected updates and rollbacks by round; nothing where there were none."""
    rows: list[dict[str, Any]] = []
    for index, one in enumerate(series):
        found: dict[tuple[int, str], dict[str, int]] = {}
        for record in (record for run in one.runs for record in run.rounds):
            refused = int(record.get("clients_rejected") or 0)
            if refused > 0:
                reasons = record["reject_reasons"] or {"no reason given": refused}
                counts = found.setdefault((record["round"], "rejected"), {})
                for reason, count in reasons.items():
                    counts[as_label(reason)] = counts.get(as_label(reason), 0) + count
            if record["rollback"]:
                counts = found.setdefault((record["round"], "rollback"), {})
                counts["rolled back"] = counts.get("rolled back", 0) + 1
        rows += [
            {
                "s": index,
                "series": one.label,
                "round": t,
                "event": event,
                "count": sum(counts.values()),
                "reasons": ", ".join(f"{reason} ×{count}" for reason, count in sorted(counts.items())[:8]),
            }
            for (t, event), counts in sorted(found.items())
        ]
    if rows:
        total = {event: sum(r["count"] for r in rows if r["event"] == event) for event in ("rejected", "rollback")}
        words = f"{total['rejected']} client updates rejected, {total['rollback']} rollbacks."
        yield Figure(
            "guard",
            "Guard",
            "Rejected clients and rollbacks",
            words,
            f"Timeline of the guard by round and series. {words}",
            event_chart(rows, [one.label for one in series]),
            wide=True,
        )


def partition_figure(groups: Sequence[Group]) -> Iterator[Figure]:
    """Who holds what, of the first partition that can be drawn."""
    parts = {
        as_label(part.get("sha256")): part
        for group in groups
        for run in group.runs
        if (part := run.partition) and _drawable(part)
    }
    if not parts:
        return
    part = next(iter(parts.values()))
    sizes = part["sizes"]
    others = f" One of {len(parts)} partitions in these runs is drawn." if len(parts) > 1 else ""
    words = f"{len(sizes)} clients, {min(sizes):,.0f} to {max(sizes):,.0f} examples each."
    yield Figure(
        "partition",
        "Data",
        "Who holds what",
        words + others,
        f"Bar chart of examples by client and class. {words}",
        partition_chart(part),
        wide=True,
        by_series=False,
    )


def _drawable(part: dict[str, Any]) -> bool:
    sizes, counts = part.get("sizes"), part.get("class_counts", [])
    return _numbers(sizes) and isinstance(counts, list) and all(_numbers(row) for row in counts)


def _numbers(values: object) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(number(value) is not None for value in values)
