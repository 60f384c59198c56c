"""The page of an experiment in Markdown: the paper's numbers beside ours at every scale, a verdict a claim.

A page is composed of the records that ``measured.part`` makes, one a scale; ``reproduce`` writes it to disk.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedhyper.lab.paper.checks.rounds import round_seconds
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.measured import table
from fedhyper.lab.paper.planning import Planned
from fedhyper.lab.paper.publishing.verdicts import (
    DECIDED,
    SHRUNK,
    Part,
    claims_table,
    first_updates_of,
    known_verdicts,
    less_work_words,
    lost_tasks,
)
from fedhyper.lab.paper.results import LAST, ONE_SEED, SEEDS, Results
from fedhyper.lab.paper.variants import VARIANTS

_COLUMNS = ("task", "method", "level", "runs", "late_accuracy", "std", "first_half", "seconds", "up", "down")
LOST = "lost"  # the folder of what was published from runs that are gone


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
    judged = bool(parts[0]["verdicts"])
    if judged:
        heading = "## The paper's claims" if not experiment.own else "## The claims, asked again"
        lines += [heading, "", claims_table(parts, old), "", *less_work_words(old)]
    lines += _updates(parts)
    for part, folder in zip(parts, folders, strict=True):
        lines += _measured(part, folder, f"At the scale {part['scale']}") if part["done"] else []
        lines += _lost(name, part)
    lines += ["## What differs from the paper", ""]
    for part in parts:
        lines += [f"- scale {part['scale']}: {line}" for line in part["changes"]]
        lines += [] if part["changes"] else [f"- scale {part['scale']}: nothing in the setting"]
    lines += [f"- {note}" for note in (*(_ALWAYS if judged else ()), *experiment.notes)]
    lines += ["", "## How the verdicts are reached", "", _RULES] if judged else []
    lines += ["", "## Where this comes from", ""]
    for part in parts:
        lines.append(f"- scale {part['scale']}: {'; '.join(part['provenance'])}")
        if lost_tasks(part):
            lines.append(f"- scale {part['scale']}, runs not kept: {'; '.join(part['lost']['provenance'])}")
    return "\n".join(lines) + "\n"


def _measured(part: Part, folder: str, heading: str) -> list[str]:
    lines = [f"## {heading}", "", *(f"![{title}]({folder}/{stem}.svg)\n" for stem, title in part["figures"])]
    tables = [text for task, table in part["tables"].items() for text in (f"#### {task}", "", table, "")]
    return [*lines, "### Measured", "", *tables]


# --- runs that were not kept ------------------------------------------------------------------------------------


def _lost(name: str, part: Part) -> list[str]:
    """What an earlier session published, as it was, of the datasets whose runs have not all been made again."""
    tasks = lost_tasks(part)
    if not tasks:
        return []
    lost = part["lost"]
    kept = {
        "figures": [one for one in lost["figures"] if one[0].partition("-")[0] in tasks],
        "tables": {task: lost["tables"][task] for task in tasks},
    }
    heading, *rest = _measured(kept, f"{LOST}/{name}/{part['scale']}", f"At the scale {part['scale']}: runs not kept")
    return [heading, "", _NOT_KEPT, *rest]


_NOT_KEPT = (
    "An earlier session made these runs and published what follows; the runs themselves are gone. Nothing of it is "
    "mixed with the runs above. A verdict that rests on it alone says so."
)


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


def _updates(parts: Sequence[Part]) -> list[str]:
    """The length of the first update at every scale: what a scale must keep for its verdicts to mean something."""
    known = [first_updates_of(part) for part in parts]
    tasks = dict.fromkeys(task for updates in known for task in updates)
    if not tasks:
        return []
    header = ["|Δ| in round 1, FedAvg", *(f"scale {part['scale']}" for part in parts)]
    rows = [[task, *(f"{one[task]:.4f}" if task in one else "–" for one in known)] for task in tasks]
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
            counts = Counter(verdict["status"] for verdict in known_verdicts(part).values())
            told = [str(counts[status]) for status in (*DECIDED, "not tested here")]
            runs = f"{part['done']} of {part['planned']}" + ("; others not kept" if lost_tasks(part) else "")
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
    "Every run behind a page is in `docs/results/runs/`, a small file each. “Others not kept”: the page also shows,",
    "apart, what an earlier session published of runs that are gone; its verdicts count here where there is no other.",
    "",
)
_AFTER = (
    f"`own-rates` and `awake` are questions of ours, not the paper's. [{SHRUNK}]({SHRUNK}/README.md) has the pages of",
    "the old small scale (100 images a client, two local epochs), where G could not move: see [awake](awake.md).",
    "The learning-rate-free method against tuned rivals: [robustness](robustness.md).",
    "",
)
