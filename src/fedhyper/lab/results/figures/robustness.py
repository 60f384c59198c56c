"""Figures over the initial rates, where runs differ in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedhyper.lab.results.charts.chart import MAX_COLOURS, Rows
from fedhyper.lab.results.charts.rates import heat_map, rate_chart
from fedhyper.lab.results.comparing import baseline, fedavg_groups
from fedhyper.lab.results.figures.figure import Figure
from fedhyper.lab.results.groups import Group, as_label, describe, legend_name
from fedhyper.lab.results.metrics import Stat, number, percent, short
from fedhyper.lab.results.series import different_runs

_RATES = ("local_lr", "global_lr")
_MAX_HEAT_MAPS = 12


def robustness_figures(groups: Sequence[Group]) -> Iterator[Figure]:
    """Accuracy against the initial rates, where runs differ in one of them; maps where they form a grid."""
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
        words = f"worst {percent(min(known))}, best {percent(max(known))}" if known else "no result"
        yield _heat(
            f"accuracy-map-{index}",
            f"accuracy of {label}",
            f"{words[0].upper()}{words[1:]}.{_one_run(grids[label])}",
            rows,
            False,
            (low, high),
        )
    gains = {label: rows for label in cells if (rows := _gains(grids[label], groups))}
    reach = max((abs(cell["value"]) for rows in gains.values() for cell in rows), default=0.0) or 1.0
    for index, (label, rows) in enumerate(gains.items(), 1):
        for cell in rows:
            cell["bright"] = abs(cell["value"]) < 0.6 * reach
        mean = sum(cell["value"] for cell in rows) / len(rows)
        worst = min(cell["value"] for cell in rows)
        words = f"Points of accuracy: {mean:+.1f} on average, {worst:+.1f} at worst.{_rival(grids[label], groups)}"
        title = f"gain of {label} over fedavg at the same rates"
        yield _heat(f"gain-map-{index}", title, words, rows, True, (-reach, reach))


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
        labels = list(lines)[:MAX_COLOURS]
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
                f"{label} {percent(min(row['accuracy'] for row in rows if row['s'] == i))}"
                for i, label in enumerate(labels)
                if any(row["s"] == i for row in rows)
            )
            words = f"Final accuracy by initial {key}"
            yield Figure(
                f"accuracy-by-{key.replace('_', '-')}",
                "Robustness",
                words,
                f"Worst of each: {worst}." + "".join(_one_run(lines[label], f"{label}: ") for label in labels),
                f"Line chart, {words.lower()}. Worst of each: {worst}.",
                rate_chart(rows, labels, x_title=f"initial {key}"),
                wide=True,
                by_series=False,
            )


def _one_run(members: Sequence[Group], who: str = "") -> str:
    """How many settings of a method are different runs, so that nobody takes copies for as many trials."""
    made = different_runs(members)
    if made == len(members):
        return ""
    runs = "one run" if made == 1 else f"{made} different runs"
    return f" {who}{len(members)} settings, {runs}: the others are the same bits."


def _rival(members: Sequence[Group], groups: Sequence[Group]) -> str:
    """The gain that tuning FedAvg would leave: best against best."""
    mine = [stat.mean for group in members if (stat := group.accuracy())]
    theirs = [stat.mean for group in fedavg_groups(members[0], groups) if (stat := group.accuracy())]
    return f" Best against best: {_points(max(mine) - max(theirs))}." if mine and theirs else ""


def _points(gain: float) -> str:
    text = ("+" if gain >= 0 else "") + short(100 * gain, 1)
    return "0.0" if text in ("+0.0", "-0.0") else text


def _heat(key: str, title: str, caption: str, rows: Rows, gain: bool, domain: tuple[float, float]) -> Figure:
    written = "; ".join(f"local {r['local']}, global {r['global']}: {r['text']}" for r in rows)
    unit = "points" if gain else "per cent"
    return Figure(
        key,
        "Robustness",
        title[0].upper() + title[1:],
        caption,
        f"Heat map, {title}, in {unit}. {written}.",
        heat_map(rows, gain=gain, domain=domain),
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
    text = short(100 * stat.mean, 1) if stat else ("failed" if ended else "…")
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
            rows.append(rates | {"value": gain, "text": _points(gain / 100), "runs": mine.n})
    return rows
