"""The figures of an experiment: the paper's panels, drawn by ``lab.figures`` from our runs, with the paper's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedhyper.lab.paper import awake
from fedhyper.lab.paper.checks.rounds import round_seconds
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.planning import Planned, ablation_panel
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import VARIANTS, Scale
from fedhyper.lab.results.groups import Group, flatten
from fedhyper.lab.results.report import FORMATS
from fedhyper.lab.results.series import make_series


def draw(
    name: str, scale: Scale, planned: Sequence[Planned], results: Results, directory: Path
) -> list[tuple[str, str]]:
    """Write every figure as PNG, SVG and PDF; file stem and title of each come back, in reading order."""
    from fedhyper.lab.results.charts.chart import save

    drawn = []
    for stem, title, chart in _charts(name, scale, planned, results):
        for suffix in FORMATS:
            save(chart, directory / f"{stem}.{suffix}", title=title)
        drawn.append((stem, title))
    return drawn


def _charts(name: str, scale: Scale, planned: Sequence[Planned], results: Results) -> Iterator[tuple[str, str, Any]]:
    from fedhyper.lab.results.figures.make import make_figures

    for task in dict.fromkeys(one.task for one in results.items):
        if name == "awake":
            yield (
                f"{task}-awake",
                f"{task}: how far G's first update moves the global rate",
                awake.chart(results, task, scale),
            )
            continue
        rows = [row for row in planned if row.task == task]
        for part, chosen in _panels(rows):
            groups = _groups(chosen, results.seeds({row.seed for row in chosen}))
            if len(groups) < 2 or (
                part and not any(results.runs(row.task, row.variant) for row in chosen if row.ablation)
            ):
                continue  # nothing to compare yet
            for figure in make_figures(groups, make_series(groups)[0], legend=True, only=EXPERIMENTS[name].figures):
                title = f"{task}: {figure.title[0].lower()}{figure.title[1:]}{part and ', ablations'}"
                yield f"{task}-{figure.key}{part}", title, figure.chart
            if EXPERIMENTS[name].figures == ("accuracy-by-round",) and _all_near_one(groups):
                title = f"{task}: test error by round{part and ', ablations'}"
                yield f"{task}-error-by-round{part}", title, _errors(groups)
        if not EXPERIMENTS[name].figures:
            yield from _bars(name, task, rows, results)


def _all_near_one(groups: Sequence[Group]) -> bool:
    """Whether methods end so close to 100 % that accuracies by round lie on each other."""
    best = [stat.mean for group in groups if (stat := group.accuracy())]
    return bool(best) and max(best) > 0.9


def _errors(groups: Sequence[Group]) -> Any:
    """The mean test error by round on a log axis, where 97.7 and 98.4 % are as far apart as 77 and 84 %."""
    from fedhyper.lab.results.charts.lines import line_chart

    rows: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        by_round: dict[int, list[float]] = {}
        for run in group.runs:
            for record in run.rounds:
                if record.get("accuracy") is not None:
                    by_round.setdefault(int(record["round"]), []).append(100 * (1 - record["accuracy"]))
        rows += [{"s": index, "series": group.label, "round": t, "error": fmean(v)} for t, v in by_round.items()]
    labels = [group.label for group in groups]
    return line_chart(rows, labels, "round", "error", x_title="round", y_title="test error, %", log=True)


def _panels(rows: Sequence[Planned]) -> list[tuple[str, list[Planned]]]:
    main, extra = [row for row in rows if not row.ablation], ablation_panel(rows)
    on_a_grid = len({row.level for row in rows}) > 1
    return [("", main), ("-ablations", extra)] if extra and not on_a_grid else [("", main)]


def _groups(rows: Sequence[Planned], results: Results) -> list[Group]:
    """A group a variant and level, under the names of the paper; a grid of rates keeps the methods' own."""
    groups = []
    grid = len({row.level for row in rows}) > 1
    for key in dict.fromkeys((row.task, row.variant, row.level) for row in rows):
        runs = results.runs(*key)
        if runs:
            apart = ("method", "local_lr", "global_lr") if grid else ("method",)
            groups.append(Group(VARIANTS[key[1]].label, flatten(runs[0].config), runs, apart))
    return groups


def _bars(name: str, task: str, rows: Sequence[Planned], results: Results) -> Iterator[tuple[str, str, Any]]:
    """Where the paper has a table: a bar an entry."""
    from fedhyper.lab.results.charts.rows import bar_chart

    bars: list[dict[str, Any]] = []
    for variant, level in dict.fromkeys((row.variant, row.level) for row in rows if not row.ablation):
        label = f"{VARIANTS[variant].label}, {level}" if level else VARIANTS[variant].label
        value = results.per_round(task, variant, round_seconds) if name == "overhead" else None
        stat = results.late(task, variant, level) if name != "overhead" else None
        bar: dict[str, Any] = {"s": len(bars), "series": label}
        if value is not None:
            bar |= {"value": value, "end": value, "text": f"{value:.4g} s"}
        elif stat is not None:
            low, high = (100 * (stat.mean + sign * (stat.std or 0.0)) for sign in (-1, 1))
            bar |= {"value": 100 * stat.mean, "end": high, "lo": low, "hi": high, "text": f"{100 * stat.mean:.2f} %"}
        else:
            continue
        bars.append(bar)
    if len(bars) > 1:
        what = "seconds a round" if name == "overhead" else "test accuracy in %, last fifth of the rounds"
        order = sorted(bars, key=lambda bar: bar["series"].partition(", ")[2]) if name != "overhead" else bars
        labels = [bar["series"] for bar in order]
        yield f"{task}-{name}", f"{task}: {what}", bar_chart(order, labels, x_title=what)
