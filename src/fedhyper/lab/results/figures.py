"""Which figures a set of runs calls for: each is there when the runs have the data for it, and not otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedhyper.lab.results import charts as plots
from fedhyper.lab.results.groups import Group, Stat, as_label, baseline, describe, legend_name
from fedhyper.lab.results.series import Series, bound_rows, curve_rows, quantile
from fedhyper.lab.results.stored import StoredRun, number

_RATES = ("local_lr", "global_lr")
_MAX_HEAT_MAPS = 12
_MAX_TICKS = 300


@dataclass(frozen=True)
class Figure:
    """A chart with its words. ``section`` is the heading it stands under, ``alt`` what a screen reader says."""

    key: str
    section: str
    title: str
    caption: str
    alt: str
    chart: plots.Chart
    wide: bool = False
    by_series: bool = True  # whether the section's legend applies to it


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


def make_figures(groups: Sequence[Group], series: Sequence[Series], *, legend: bool) -> list[Figure]:
    """All figures of these groups, in reading order; ``legend`` puts one into each chart, for files without a page."""
    rows = curve_rows(series)
    found = list(_robustness(groups))
    found += _curves(rows, series, legend)
    found += _to_target(series)
    found += _clients(series)
    found += _events(series)
    found += _partition(groups)
    order = ["Robustness", "Accuracy", "Rounds to target", "Learning rates", "Loss", "Clients", "Guard", "Data"]
    return sorted(found, key=lambda figure: order.index(figure.section))


def _curves(rows: plots.Rows, series: Sequence[Series], legend: bool) -> Iterator[Figure]:
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
        chart = plots.line_chart(
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


def _alt(line: _Line, rows: plots.Rows, labels: Sequence[str]) -> str:
    last = {row["s"]: row[line.field] for row in rows if line.field in row}
    ends = [
        f"{label} {last[index]:.1%}" if line.percent else f"{label} {last[index]:.3g}"
        for index, label in enumerate(labels)
        if index in last
    ]
    return f"Line chart, {line.title.lower()}. Last values: {'; '.join(ends)}."


def _to_target(series: Sequence[Series]) -> Iterator[Figure]:
    aims = {run.target_accuracy for one in series for run in one.runs} - {None}
    if len(aims) != 1:
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
                row["text"] += f" ({stat.n} of {len(runs)} runs)"
        rows.append(row)
    if all("value" not in row for row in rows):
        return
    target = next(aim for aim in aims if aim is not None)
    words = "; ".join(f"{row['series']} {row['text']}" for row in rows)
    yield Figure(
        "rounds-to-target",
        "Rounds to target",
        f"Rounds to {target:.0%} test accuracy",
        "Mean over the runs that reach it; the whisker is one standard deviation.",
        f"Bar chart, rounds to {target:.0%} accuracy: {words}.",
        plots.bar_chart(rows, [one.label for one in series], x_title="rounds"),
        wide=True,
    )


def _clients(series: Sequence[Series]) -> Iterator[Figure]:
    rows: list[dict[str, Any]] = []
    for index, one in enumerate(series):
        values = [v for run in one.runs for v in _last_client_accuracy(run)]
        if len(values) > _MAX_TICKS:
            values = [quantile(values, i / (_MAX_TICKS - 1)) for i in range(_MAX_TICKS)]
        rows += [{"s": index, "series": one.label, "value": round(value, 4)} for value in values]
    if rows:
        worst = "; ".join(
            f"{one.label} {min(row['value'] for row in rows if row['s'] == i):.0%}"
            for i, one in enumerate(series)
            if any(row["s"] == i for row in rows)
        )
        yield Figure(
            "client-accuracy",
            "Clients",
            "Accuracy on each client's own data",
            "One tick a client, at the last round where clients were measured.",
            f"Strip chart of accuracy by client. Lowest: {worst}.",
            plots.strip_chart(rows, [one.label for one in series], x_title="accuracy"),
            wide=True,
        )


def _last_client_accuracy(run: StoredRun) -> list[float]:
    return next((r["client_accuracy"] for r in reversed(run.rounds) if r["client_accuracy"]), [])


def _events(series: Sequence[Series]) -> Iterator[Figure]:
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
            plots.event_chart(rows, [one.label for one in series]),
            wide=True,
        )


def _partition(groups: Sequence[Group]) -> Iterator[Figure]:
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
        plots.partition_chart(part),
        wide=True,
        by_series=False,
    )


def _drawable(part: dict[str, Any]) -> bool:
    sizes, counts = part.get("sizes"), part.get("class_counts", [])
    return _numbers(sizes) and isinstance(counts, list) and all(_numbers(row) for row in counts)


def _numbers(values: object) -> bool:
    return isinstance(values, list) and len(values) > 0 and all(number(value) is not None for value in values)


def _robustness(groups: Sequence[Group]) -> Iterator[Figure]:
    families: dict[str, list[Group]] = {}
    for group in groups:
        if all(number(group.settings.get(key)) is not None for key in _RATES):
            families.setdefault(_family(group), []).append(group)
    yield from _one_rate(families)
    grids = {label: members for label, members in families.items() if _is_grid(members)}
    if not grids:
        return
    cells = {label: [_cell(group) for group in members] for label, members in list(grids.items())[:_MAX_HEAT_MAPS]}
    values = [cell["value"] for rows in cells.values() for cell in rows if cell["value"] is not None]
    if not values:
        return
    low, high = min(values), max(values)
    for index, (label, rows) in enumerate(cells.items(), 1):
        for cell in rows:
            cell["bright"] = cell["value"] is not None and cell["value"] > low + 0.6 * (high - low)
        known = [cell["value"] for cell in rows if cell["value"] is not None]
        words = f"worst {min(known):.1%}, best {max(known):.1%}" if known else "no result"
        yield _heat(
            f"accuracy-map-{index}", f"accuracy of {label}", f"{words[0].upper()}{words[1:]}.", rows, False, (low, high)
        )
    gains = {label: rows for label in cells if (rows := _gains(grids[label], groups))}
    reach = max((abs(cell["value"]) for rows in gains.values() for cell in rows), default=0.0) or 1.0
    for index, (label, rows) in enumerate(gains.items(), 1):
        for cell in rows:
            cell["bright"] = abs(cell["value"]) < 0.6 * reach
        mean = sum(cell["value"] for cell in rows) / len(rows)
        worst = min(cell["value"] for cell in rows)
        words = f"Points of accuracy: {mean:+.1f} on average, {worst:+.1f} at worst."
        yield _heat(f"gain-map-{index}", f"gain of {label} over fedavg", words, rows, True, (-reach, reach))


def _one_rate(families: dict[str, list[Group]]) -> Iterator[Figure]:
    """Final accuracy against one initial rate, where the other was held still."""
    for key, other in (_RATES, _RATES[::-1]):
        rows: list[dict[str, Any]] = []
        lines = {
            label: members
            for label, members in families.items()
            if len({as_label(group.settings[key]) for group in members}) >= 3
            and len({as_label(group.settings[other]) for group in members}) == 1
        }
        labels = list(lines)[: plots.MAX_COLOURS]
        for index, label in enumerate(labels):
            for group in lines[label]:
                stat = Stat.of(run.final_accuracy for run in group.runs if run.ended)
                rate = number(group.settings[key]) or 0.0
                if stat and rate > 0:
                    spread = stat.std or 0.0
                    row = {"s": index, "series": label, "rate": rate, "accuracy": stat.mean, "runs": stat.n}
                    rows.append(row | {"accuracy_lo": stat.mean - spread, "accuracy_hi": stat.mean + spread})
        if rows:
            worst = "; ".join(
                f"{label} {min(row['accuracy'] for row in rows if row['s'] == i):.1%}"
                for i, label in enumerate(labels)
                if any(row["s"] == i for row in rows)
            )
            words = f"Final accuracy by initial {key}"
            yield Figure(
                f"accuracy-by-{key.replace('_', '-')}",
                "Robustness",
                words,
                f"Worst of each: {worst}.",
                f"Line chart, {words.lower()}. Worst of each: {worst}.",
                plots.rate_chart(rows, labels, x_title=f"initial {key}"),
                wide=True,
                by_series=False,
            )


def _heat(key: str, title: str, caption: str, rows: plots.Rows, gain: bool, domain: tuple[float, float]) -> Figure:
    written = "; ".join(f"local {r['local']}, global {r['global']}: {r['text']}" for r in rows)
    unit = "points" if gain else "per cent"
    return Figure(
        key,
        "Robustness",
        title[0].upper() + title[1:],
        caption,
        f"Heat map, {title}, in {unit}. {written}.",
        plots.heat_map(rows, gain=gain, domain=domain),
        by_series=False,
    )


def _family(group: Group) -> str:
    """What tells a group apart from the others, its initial rates left out."""
    return legend_name(describe(group.settings, [key for key in group.apart if key not in _RATES]) or group.method)


def _is_grid(members: Sequence[Group]) -> bool:
    axes = [{as_label(group.settings.get(key)) for group in members} for key in _RATES]
    return all(len(axis) > 1 for axis in axes) and len(members) >= 4


def _cell(group: Group) -> dict[str, Any]:
    ended = [run for run in group.runs if run.ended]
    stat = Stat.of(run.final_accuracy for run in ended)
    text = f"{100 * stat.mean:.1f}" if stat else ("failed" if ended else "…")
    return _rates(group) | {"value": stat.mean if stat else None, "text": text, "runs": len(ended)}


def _rates(group: Group) -> dict[str, Any]:
    return {"local": as_label(group.settings["local_lr"]), "global": as_label(group.settings["global_lr"])}


def _gains(members: Sequence[Group], groups: Sequence[Group]) -> list[dict[str, Any]]:
    rows = []
    for group in members:
        mine = Stat.of(run.final_accuracy for run in group.runs if run.ended)
        rates = _rates(group)
        rivals = [other for other in baseline(group, groups) if _rates(other) == rates]
        theirs = Stat.of(run.final_accuracy for rival in rivals for run in rival.runs if run.ended)
        if group.method != "fedavg" and mine and theirs:
            gain = 100 * (mine.mean - theirs.mean)
            rows.append(
                rates
                | {"value": gain, "text": f"{gain:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0"), "runs": mine.n}
            )
    return rows
