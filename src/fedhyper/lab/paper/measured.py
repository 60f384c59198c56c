"""What one scale contributes to a page: tables of what was measured, the runs that are missing, where it comes from.

Pure functions of the runs. ``part`` puts them into one plain record, so that a page can be composed of several scales
whose runs need not be on the same machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedhyper.lab.paper import awake
from fedhyper.lab.paper.checks.rounds import round_seconds
from fedhyper.lab.paper.claims import Verdict
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.planning import Planned, ablation_panel, reductions
from fedhyper.lab.paper.results import Result, Results
from fedhyper.lab.paper.variants import VARIANTS, Scale
from fedhyper.lab.results.metrics import Stat, total_seconds
from fedhyper.lab.results.tables import spread
from fedhyper.lab.running.words import duration


def part(
    name: str,
    scale: Scale,
    planned: Sequence[Planned],
    results: Results,
    judged: Sequence[Verdict],
    figures: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Everything a page says of one scale, as plain values."""
    return {
        "title": EXPERIMENTS[name].title,
        "scale": scale,
        "done": len(results.items),
        "planned": len(planned),
        "missing": missing(planned, results),
        "methods": _methods_there(results),
        "verdicts": [asdict(verdict) for verdict in judged],
        "first_updates": first_updates(results),
        "figures": [list(one) for one in figures],
        "tables": _tables(name, planned, results),
        "changes": reductions(scale, name),
        "provenance": _provenance(planned, results),
    }


def missing(planned: Sequence[Planned], results: Results) -> list[str]:
    """The runs that are not there, a line a dataset: ``mnist: FedAvg (seeds 1, 2), FedHyper-G (seed 2)``."""
    have = {(one.task, one.variant, one.level, one.seed) for one in results.items}
    lines = []
    for task in dict.fromkeys(row.task for row in planned):
        rows = [row for row in planned if row.task == task]
        gaps: dict[str, list[int]] = {}
        for row in rows:
            if (row.task, row.variant, row.level, row.seed) not in have:
                gaps.setdefault(_words(row), []).append(row.seed)
        if sum(map(len, gaps.values())) == len(rows):
            lines.append(f"{task}: all {len(rows)} runs")
        elif gaps:
            named = (f"{words} (seed{'s' * (len(seeds) > 1)} {_list(seeds)})" for words, seeds in gaps.items())
            lines.append(f"{task}: {'; '.join(named)}")
    return lines


def _words(one: Planned | Result) -> str:
    return ", ".join(filter(None, (VARIANTS[one.variant].label, one.level)))


def _methods_there(results: Results) -> dict[str, list[str]]:
    """What has a run, by dataset."""
    found: dict[str, dict[str, None]] = {}
    for one in results.items:
        found.setdefault(one.task, {})[_words(one)] = None
    return {task: list(words) for task, words in found.items()}


def first_updates(results: Results) -> dict[str, float]:
    """The length of the first round's mean update by dataset, of FedAvg on the lowest seed that is there."""
    found: dict[str, float] = {}
    for one in sorted(results.items, key=lambda one: one.seed):
        norm = one.run.rounds[0].get("update_norm") if one.run.rounds else None
        if norm is not None and one.variant == "fedavg" and not one.level:
            found.setdefault(one.task, norm)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]  # |Δ| would end its cell
    lines = [escaped[0], ["---"] * len(header), *escaped[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _accuracy(stat: Stat | None) -> str:
    return spread(stat, 2, 100.0) if stat else "–"


def _tables(name: str, planned: Sequence[Planned], results: Results) -> dict[str, str]:
    """What was measured, by task."""
    tasks = dict.fromkeys(one.task for one in results.items)
    return {task: _table(name, task, [row for row in planned if row.task == task], results) for task in tasks}


def _table(name: str, task: str, rows: Sequence[Planned], results: Results) -> str:
    """A row a method, or where a level varies a row a level and a column a method."""
    levels = list(dict.fromkeys(row.level for row in rows))
    if name == "awake":
        return table(awake.HEADER, list(awake.table_rows(results, task, levels)))
    if len(levels) > 1:
        variants = dict.fromkeys(row.variant for row in rows)
        header = ["accuracy, last fifth (%)", *(VARIANTS[one].label for one in variants)]
        body = [[level, *(_accuracy(results.late(task, one, level)) for one in variants)] for level in levels]
        return table(header, body)
    main, extra = _methods(task, [row for row in rows if not row.ablation], results), ablation_panel(rows)
    seeds = {row.seed for row in extra}
    words = f"Ablations on {task}, seed {_list(sorted(seeds))} only:"
    return f"{main}\n\n{words}\n\n{_methods(task, extra, results.seeds(seeds))}" if extra else main


_HEADER = ("", "runs", "accuracy, last fifth (%)", "mean over the first half (%)", "s / round", "MB up, down / round")


def _methods(task: str, rows: Sequence[Planned], results: Results) -> str:
    return table(_HEADER, [_method_row(task, one, results) for one in dict.fromkeys(row.variant for row in rows)])


def _method_row(task: str, variant: str, results: Results) -> list[str]:
    seconds = results.per_round(task, variant, round_seconds)
    up, down = (_megabytes(results, task, variant, key) for key in ("bytes_up", "bytes_down"))
    runs = len(results.runs(task, variant))
    late, early = _accuracy(results.late(task, variant)), _accuracy(results.early(task, variant))
    took = f"{seconds:.3g}" if seconds is not None else "–"
    return [VARIANTS[variant].label, str(runs or "missing"), late, early, took, f"{up}, {down}" if runs else "–"]


def _megabytes(results: Results, task: str, variant: str, key: str) -> str:
    sent = results.per_round(task, variant, lambda record: record[key])
    return f"{sent / 1e6:.3g}" if sent is not None else "–"


def _provenance(planned: Sequence[Planned], results: Results) -> list[str]:
    if not results.items:
        return ["no runs yet"]
    envs = [one.run.env or {} for one in results.items]
    machines = {f"{env.get('platform')}, {env.get('cpu_count')} cores" for env in envs if env.get("platform")}
    commits = sorted({str(env["git"])[:12] for env in envs if env.get("git")})
    versions = {f"fedhyper {env.get('fedhyper')}, torch {env.get('torch')}" for env in envs if env.get("fedhyper")}
    ended = Counter(one.run.status for one in results.items)
    days = sorted({str(env["started"])[:10] for env in envs if env.get("started")})
    cut = sum("cut_from_rounds" in (one.run.summary or {}) for one in results.items)
    lines = [
        f"{len(results.items)} of {len(planned)} runs ({', '.join(f'{n} {s}' for s, n in sorted(ended.items()))}); "
        f"seeds {_list(sorted({one.seed for one in results.items}))}",
        f"commit {', '.join(commits) or 'unknown'}; {'; '.join(sorted(versions)) or 'no version'}",
        f"machine {'; '.join(sorted(machines)) or 'unknown'}",
        f"made on {' to '.join(dict.fromkeys((days[0], days[-1]))) if days else 'an unknown day'}",
        f"time in runs {duration(sum(total_seconds(one.run) for one in results.items))}, as many at once as cores, "
        "on a machine that did other work meanwhile",
    ]
    return [*lines, f"{cut} of them are the first rounds of a longer run of the same config"] if cut else lines
