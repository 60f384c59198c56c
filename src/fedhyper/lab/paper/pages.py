"""The page of an experiment in Markdown: the paper's numbers beside ours, a verdict a claim, and what it rests on.

Its parts are pure functions of the runs; ``reproduce`` writes them to disk.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedhyper.lab.paper.claims import Verdict
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.planning import Planned, ablation_panel, reductions
from fedhyper.lab.paper.results import LAST, ONE_SEED, SEEDS, Results
from fedhyper.lab.paper.checks.rounds import round_seconds
from fedhyper.lab.paper.variants import VARIANTS, Scale
from fedhyper.lab.results.metrics import Stat, total_seconds
from fedhyper.lab.results.tables import spread
from fedhyper.lab.running.words import duration

_COLUMNS = ("task", "method", "level", "runs", "late_accuracy", "std", "first_half", "seconds", "up", "down")


def command(name: str, scale: Scale) -> str:
    """What makes this page again."""
    return f"fedhyper reproduce {name} --scale {scale} --pages docs/results"


def markdown(
    name: str,
    scale: Scale,
    planned: Sequence[Planned],
    results: Results,
    judged: Sequence[Verdict],
    figures: Sequence[tuple[str, str]],
    folder: str,
) -> str:
    """The page; its figures lie in ``folder``, relative to it."""
    experiment = EXPERIMENTS[name]
    done = len(results.items)
    lines = [f"# {name}: {experiment.title}", "", f"`{command(name, scale)}`", ""]
    if done < len(planned):
        lines += [f"**Unfinished: {done} of {len(planned)} runs.** The command above continues it.", ""]
    lines += ["## The paper's claims", "", _claims_table(judged), ""]
    if figures:
        lines += ["## Figures", "", *(f"![{title}]({folder}/{stem}.svg)\n" for stem, title in figures)]
    lines += ["## Measured", "", *_tables(planned, results), ""]
    lines += ["## What differs from the paper", ""]
    changed = reductions(scale, name)
    lines += [f"- {line}" for line in changed] or ["- nothing in the setting"]
    lines += [f"- {note}" for note in (*_ALWAYS, *experiment.notes)]
    lines += ["", "## How the verdicts are reached", "", _RULES, "", "## Where this comes from", ""]
    lines += [f"- {line}" for line in _provenance(planned, results, scale)]
    return "\n".join(lines) + "\n"


_ALWAYS = (
    "Three readings of the paper's bound are in use. `FedHyper-SL` and `-CL` here keep a rate within a factor γ of its "
    "start; `[1/γ, γ]` is the letter of the paper; `released code` is what its authors published.",
    "The paper's “FMNIST” accuracies (96–99 %) are MNIST's, which its code loads under that name; "
    "here mnist is MNIST and fmnist is Fashion-MNIST.",
    "FedAdam and FedAdagrad (global rate 0.01) and FedAvg + Adam (local rate 0.001) start from rates of their own; "
    "the paper does not give theirs.",
)
_RULES = (
    f"Methods are compared by the mean over the evaluations in the last {100 * LAST:g} % of the rounds. With several "
    f"seeds one mean is above another when it is so by {100 * SEEDS:g} points and by the standard error of the "
    f"difference; with one seed, by {100 * ONE_SEED:g} points. The checks and their thresholds are code: "
    "`src/fedhyper/lab/paper/checks/`."
)


def _claims_table(judged: Sequence[Verdict]) -> str:
    rows = [(v.text, v.task, v.paper, v.ours, f"**{v.status}**", v.why) for v in judged]
    return _table(("claim", "data", "paper", "ours", "verdict", "why"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _accuracy(stat: Stat | None) -> str:
    return spread(stat, 2, 100.0) if stat else "–"


def _tables(planned: Sequence[Planned], results: Results) -> list[str]:
    """A table a task: a row a method, or where a level varies a row a level and a column a method."""
    parts: list[str] = []
    for task in dict.fromkeys(row.task for row in planned):
        rows = [row for row in planned if row.task == task]
        levels = list(dict.fromkeys(row.level for row in rows))
        parts += [f"### {task}", ""]
        if len(levels) > 1:
            variants = dict.fromkeys(row.variant for row in rows)
            header = ["accuracy, last fifth (%)", *(VARIANTS[one].label for one in variants)]
            body = [[level, *(_accuracy(results.late(task, one, level)) for one in variants)] for level in levels]
            parts += [_table(header, body), ""]
            continue
        parts += [_methods(task, [row for row in rows if not row.ablation], results), ""]
        extra = ablation_panel(rows)
        if extra:
            seeds = {row.seed for row in extra}
            words = f"Ablations on {task}, seed {', '.join(map(str, sorted(seeds)))} only:"
            parts += [words, "", _methods(task, extra, results.seeds(seeds)), ""]
    return parts


def _methods(task: str, rows: Sequence[Planned], results: Results) -> str:
    header = [
        "",
        "runs",
        "accuracy, last fifth (%)",
        "mean over the first half (%)",
        "s / round",
        "MB up, down / round",
    ]
    return _table(header, [_method_row(task, one, results) for one in dict.fromkeys(row.variant for row in rows)])


def _method_row(task: str, variant: str, results: Results) -> list[str]:
    seconds = results.per_round(task, variant, round_seconds)
    up, down = (_megabytes(results, task, variant, key) for key in ("bytes_up", "bytes_down"))
    early = results.early(task, variant)
    return [
        VARIANTS[variant].label,
        str(len(results.runs(task, variant))),
        _accuracy(results.late(task, variant)),
        _accuracy(early),
        f"{seconds:.3g}" if seconds is not None else "–",
        f"{up}, {down}",
    ]


def _megabytes(results: Results, task: str, variant: str, key: str) -> str:
    sent = results.per_round(task, variant, lambda record: record[key])
    return f"{sent / 1e6:.3g}" if sent is not None else "–"


def _provenance(planned: Sequence[Planned], results: Results, scale: Scale) -> list[str]:
    envs = [one.run.env or {} for one in results.items]
    seeds = sorted({one.seed for one in results.items})
    machines = {f"{env.get('platform')}, {env.get('cpu_count')} cores" for env in envs if env.get("platform")}
    commits = sorted({str(env["git"])[:12] for env in envs if env.get("git")})
    versions = {f"fedhyper {env.get('fedhyper')}, torch {env.get('torch')}" for env in envs if env.get("fedhyper")}
    ended = Counter(one.run.status for one in results.items)
    return [
        f"scale {scale}; {len(results.items)} of {len(planned)} runs ("
        + (", ".join(f"{n} {status}" for status, n in sorted(ended.items())) or "none yet")
        + f"); seeds {', '.join(map(str, seeds)) or '–'}",
        f"commit {', '.join(commits) or 'unknown'}; {'; '.join(sorted(versions)) or 'no version'}",
        f"machine {'; '.join(sorted(machines)) or 'unknown'}",
        f"time in runs {duration(sum(total_seconds(one.run) for one in results.items))}, as many at once as cores",
    ]


def table_csv(planned: Sequence[Planned], results: Results) -> str:
    """Every cell of the tables as numbers: accuracies are fractions, seconds and bytes are a round's."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for task, variant, level in dict.fromkeys((row.task, row.variant, row.level) for row in planned):
        stat, early = results.late(task, variant, level), results.early(task, variant)
        single = level == ""
        costs = [
            results.per_round(task, variant, value)
            for value in (round_seconds, lambda r: r["bytes_up"], lambda r: r["bytes_down"])
        ]
        values: list[Any] = [
            stat.mean if stat else None,
            stat.std if stat else None,
            early.mean if early and single else None,
            *(costs if single else (None, None, None)),
        ]
        cells = ["" if value is None else f"{value:.6g}" for value in values]
        writer.writerow([task, VARIANTS[variant].label, level, len(results.runs(task, variant, level)), *cells])
    return out.getvalue()


def index(pages: dict[str, dict[str, Any]]) -> str:
    """The index of a directory of pages, from what each says of itself."""
    rows = []
    for name, page in pages.items():
        counts = Counter(verdict["status"] for verdict in page["verdicts"])
        told = [str(counts[status]) for status in ("reproduced", "not reproduced", "not tested here")]
        rows.append(
            [f"[{name}]({name}.md)", page["title"], page["scale"], f"{page['done']} of {page['planned']}", *told]
        )
    missing = [name for name in EXPERIMENTS if name not in pages]
    rows += [[name, EXPERIMENTS[name].title, "–", "not run yet", "–", "–", "–"] for name in missing]
    header = ("page", "what", "scale", "runs", "reproduced", "not reproduced", "not tested here")
    return "\n".join([*_INDEX, _table(header, rows), ""])


_INDEX = (
    "# The paper's experiments, run again",
    "",
    "Each page sets the numbers of FedHyper (ICLR 2024) beside ours, with a verdict a claim. The command on a page",
    "makes it again; `fedhyper reproduce all --scale small --pages docs/results` makes them all.",
    "How: [reproduce](../reproduce.md).",
    "",
)
