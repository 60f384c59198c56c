"""The page of an experiment in Markdown: the paper's numbers beside ours at every scale, a verdict a claim.

A page is composed of the records that ``measured.part`` makes, one a scale; ``reproduce`` writes it to disk.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedhyper.lab.paper.awake import OLD
from fedhyper.lab.paper.checks.rounds import round_seconds
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.measured import table
from fedhyper.lab.paper.planning import Planned
from fedhyper.lab.paper.results import LAST, ONE_SEED, SEEDS, Results
from fedhyper.lab.paper.variants import VARIANTS

SHRUNK = "shrunk"  # the folder of the pages of the old small scale
_DECIDED = ("reproduced", "not reproduced")
_COLUMNS = ("task", "method", "level", "runs", "late_accuracy", "std", "first_half", "seconds", "up", "down")
Part = dict[str, Any]


def command(name: str, scale: str) -> str:
    """What makes this page again."""
    return f"fedhyper reproduce {name} --scale {scale} --pages docs/results"


def markdown(name: str, parts: Sequence[Part], folders: Sequence[str], old: Part | None = None) -> str:
    """The page of these scales, whose figures lie in ``folders`` relative to it; ``old`` is the old small scale's."""
    experiment = EXPERIMENTS[name]
    lines = [f"# {name}: {experiment.title}", ""]
    lines += [f"`{command(name, part['scale'])}`\n" for part in parts]
    lines += [experiment.about, ""] if experiment.about else []
    for part in parts:
        lines += _unfinished(name, part)
    if parts[0]["verdicts"]:
        heading = "## The paper's claims" if not experiment.own else "## The claims, asked again"
        lines += [heading, "", _claims_table(parts, old), "", *_words(parts, old)]
    lines += _updates(parts)
    for part, folder in zip(parts, folders, strict=True):
        if part["done"]:
            lines += [f"## At the scale {part['scale']}", ""]
            lines += [f"![{title}]({folder}/{stem}.svg)\n" for stem, title in part["figures"]]
            lines += ["### Measured", "", part["tables"], ""]
    lines += ["## What differs from the paper", ""]
    for part in parts:
        lines += [f"- scale {part['scale']}: {line}" for line in part["changes"]]
        lines += [] if part["changes"] else [f"- scale {part['scale']}: nothing in the setting"]
    judged = bool(parts[0]["verdicts"])
    lines += [f"- {note}" for note in (*(_ALWAYS if judged else ()), *experiment.notes)]
    lines += ["", "## How the verdicts are reached", "", _RULES] if judged else []
    lines += ["", "## Where this comes from", ""]
    lines += [f"- scale {part['scale']}: {'; '.join(part['provenance'])}" for part in parts]
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
    f"Methods are compared by the mean over the evaluations in the last {100 * LAST:g} % of the rounds, on the seeds "
    f"that both have. With several seeds one mean is above another when it is so by {100 * SEEDS:g} points and by the "
    f"standard error of the difference; with one seed, by {100 * ONE_SEED:g} points. At the scale paper some methods "
    "get three seeds on mnist, chosen when four runs of seed 0 were known: FedAvg, the paper's four, "
    "and the best baseline of each figure "
    "by the old small scale's first half of rounds (FedExP; FedAvg; FedAvg + Adam). The checks and their thresholds "
    "are code: `src/fedhyper/lab/paper/checks/`."
)


def _unfinished(name: str, part: Part) -> list[str]:
    if part["done"] == part["planned"]:
        return []
    head = f"**Scale {part['scale']}: {part['done']} of {part['planned']} runs are there.** Missing:"
    lines, tasks = [], []
    for line in part["missing"]:
        task = line.partition(":")[0]
        heavy = _HEAVY.get((part["scale"], task))
        lines.append(f"- {line}" + (f" ({heavy})" if heavy else ""))
        tasks += [] if heavy else [task]
    only = f" --tasks {','.join(tasks)}" if tasks else " --device cuda"
    again = f"fedhyper reproduce {name} --scale {part['scale']}{only} --pages docs/results"
    return [head, "", *lines, "", f"`{again}` goes on.", ""]


_HEAVY = {
    ("paper", "cifar10"): "ResNet-18, 200 rounds: work for a GPU",
    ("paper", "shakespeare"): "600 rounds of a two-layer LSTM: work for a GPU",
}


def _claims_table(parts: Sequence[Part], old: Part | None) -> str:
    header = ["claim", "data", "the paper", *(f"scale {part['scale']}" for part in parts)]
    header += ["with less local work", "changes with the local work?"] if old else []
    columns = [_by_claim(part) for part in parts]
    before = _by_claim(old) if old else {}
    rows = []
    for verdict in parts[0]["verdicts"]:
        key = verdict["text"], verdict["task"]
        row = [verdict["text"], verdict["task"], verdict["paper"], *(_cell(column.get(key)) for column in columns)]
        rows.append([*row, _cell(before.get(key)), _change(key, columns, before)] if old else row)
    return table(header, rows)


def _by_claim(part: Part) -> dict[tuple[str, str], dict[str, str]]:
    return {(verdict["text"], verdict["task"]): verdict for verdict in part["verdicts"]}


def _cell(verdict: dict[str, str] | None) -> str:
    if verdict is None:
        return "–"
    if verdict["status"] not in _DECIDED:
        return (
            f"not tested here: {verdict['why']}" if verdict["ours"] == "–" else f"{verdict['ours']}; {verdict['why']}"
        )
    return f"**{verdict['status']}**: {verdict['ours']}; {verdict['why']}"


def _change(key: tuple[str, str], columns: Sequence[dict[tuple[str, str], dict[str, str]]], before: Any) -> str:
    now = {c[key]["status"] for c in columns if key in c and c[key]["status"] in _DECIDED}
    then = before[key]["status"] if key in before and before[key]["status"] in _DECIDED else None
    if not now or then is None:
        return "–"
    if len(now) > 1:  # rounds or seeds, then: our scales have the same local work
        return "unclear: scales with the same local work differ"
    return "no" if now == {then} else f"**yes**: {then} → {now.pop()}"


def _words(parts: Sequence[Part], old: Part | None) -> list[str]:
    if not old:
        return []
    return [
        f"“With less local work” is {OLD}. It is no verdict on the paper: updates there are so short that FedHyper-G's "
        f"rate hardly moves ([why](awake.md); [those pages]({SHRUNK}/README.md)).",
        "",
    ]


def _updates(parts: Sequence[Part]) -> list[str]:
    """The length of the first update at every scale: what a scale must keep for its verdicts to mean something."""
    tasks = dict.fromkeys(task for part in parts for task in part["first_updates"])
    if not tasks:
        return []
    header = ["|Δ| in round 1, FedAvg", *(f"scale {part['scale']}" for part in parts)]
    rows = [[t, *(f"{p['first_updates'][t]:.4f}" if t in p["first_updates"] else "–" for p in parts)] for t in tasks]
    return ["## Local work", "", table(header, rows), ""]


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


def index(pages: dict[str, Sequence[Part]]) -> str:
    """The index of a directory of pages: a row a page and scale."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        for part in pages.get(name, ()):
            counts = Counter(verdict["status"] for verdict in part["verdicts"])
            told = [str(counts[status]) for status in (*_DECIDED, "not tested here")]
            runs = f"{part['done']} of {part['planned']}"
            rows.append([f"[{name}]({name}.md)", experiment.title, part["scale"], runs, *told])
        if name not in pages:
            rows.append([name, experiment.title, "–", "not run yet", "–", "–", "–"])
    header = ("page", "what", "scale", "runs", "reproduced", "not reproduced", "not tested here")
    return "\n".join([*_INDEX, table(header, rows), "", *_AFTER])


_INDEX = (
    "# The paper's experiments, run again",
    "",
    "Each page sets the numbers of FedHyper (ICLR 2024) beside ours, with a verdict a claim. The command on a page",
    "makes it again; a page that lacks runs names them and how to go on. How: [reproduce](../reproduce.md).",
    "",
)
_AFTER = (
    f"`own-rates` and `awake` are questions of ours, not the paper's. [{SHRUNK}]({SHRUNK}/README.md) has the pages of",
    "the old small scale (100 images a client, two local epochs), where G could not move: see [awake](awake.md).",
    "The learning-rate-free method from 25 pairs of initial rates: [robustness](robustness.md).",
    "",
)
