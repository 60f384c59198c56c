"""The table of the paper's claims in README.md: a line a claim, in plain words, from the parts that the pages have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhyper.lab.paper.measured import table
from fedhyper.lab.paper.publishing.verdicts import DECIDED, Part, known_verdicts
from fedhyper.storage.files import write_new

_MARK = re.compile(r"(<!-- claims: begin -->\n).*?(<!-- claims: end -->)", re.DOTALL)
_EARLY = "converges faster in the early rounds than all baselines"
_TIMES = "converges 1.1 to 3 × faster than FedAvg"
# experiment, the claim's text there, and the same in plain words
CLAIMS_IN_WORDS: tuple[tuple[str, str, str], ...] = (
    ("fig-g", _TIMES, "G gets to 95 % of FedAvg's accuracy 1.1 to 3 × sooner"),
    ("fig-g", _EARLY, "G is first of all in the first half of the rounds"),
    ("fig-g", "above the best baseline", "G ends above the best baseline (by 0.45 points)"),
    ("fig-curve", "G's rate rises to round 15 of 100, then falls", "G's rate rises, then falls"),
    ("fig-curve", "FedExP's rate stays between 1.0 and 1.5", "FedExP's rate stays between 1.0 and 1.5"),
    ("fig-sl", _TIMES, "SL gets there 1.1 to 3 × sooner than FedAvg"),
    ("fig-sl", "speed and accuracy comparable with G, or better", "SL is as good as G, or better"),
    ("fig-sl", "above FedAvg and Decay-SL", "SL ends above FedAvg and a decaying local rate"),
    ("fig-cl", _TIMES, "CL gets there 1.1 to 3 × sooner than FedAvg"),
    ("fig-cl", "above FedAvg with SGD and with Adam", "CL ends above FedAvg with SGD and with Adam (by 0.44 points)"),
    ("fig-combine", "G+CL is better than G and than CL", "G + CL ends above G and above CL"),
    ("tab-noniid", "FedHyper above FedAvg, IID", "G + CL ends above FedAvg: clients alike (IID)"),
    ("tab-noniid", "FedHyper above FedAvg, Dirichlet 0.75", "the same: mild skew (Dirichlet 0.75)"),
    ("tab-noniid", "FedHyper above FedAvg, Dirichlet 0.5", "the same: Dirichlet 0.5"),
    ("tab-noniid", "FedHyper above FedAvg, Dirichlet 0.25", "the same: strong skew (Dirichlet 0.25)"),
    ("tab-noniid", "helps most where data is most skewed", "it helps most at the strongest skew"),
)  # fmt: skip
_ELSEWHERE = (
    ("fig-robust", "gains of 1 to 5 points for most initial rates"),
    ("fig-compose", "G improves server momentum and FedAdam"),
    ("overhead", "what a round costs"),
)


def write_claims(readme: Path, known: Mapping[str, Sequence[Part]]) -> None:
    """Put the table between the two marks of ``readme``, if it has them."""
    old = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if _MARK.search(old):
        text = claims_block({name: at_paper(parts) for name, parts in known.items()})
        write_new(readme, _MARK.sub(lambda marks: f"{marks[1]}{text}\n{marks[2]}", old))


def at_paper(parts: Sequence[Part]) -> Part | None:
    """The part of the paper's own scale."""
    return next((part for part in parts if part["scale"] == "paper"), None)


def claims_block(parts: dict[str, Part | None]) -> str:
    """The table, what is missing, and what was not run."""
    rows = []
    for name, text, words in CLAIMS_IN_WORDS:
        part = parts.get(name)
        verdicts = known_verdicts(part) if part else {}
        here, there = (verdicts.get((text, task), {}) for task in ("mnist", "fmnist"))
        rows.append(
            [words, f"{_ours(here)} ([{name}](docs/results/{name}.md))", _holds(here), _holds(there) + _lost(there)]
        )
    header = ["the paper says", "MNIST, measured", "holds?", "on Fashion-MNIST?"]
    written = table(header, rows)
    return "\n".join([written, "", *_after(parts, lost="†" in written)])


def _ours(verdict: dict[str, Any]) -> str:
    if verdict.get("status") not in DECIDED:
        return "its runs are missing"
    return str(verdict["ours"]) + _lost(verdict)


def _holds(verdict: dict[str, Any]) -> str:
    if verdict.get("status") not in DECIDED:
        return "–"
    if verdict.get("unsure"):
        return "cannot tell"
    return "yes" if verdict["status"] == "reproduced" else "no"


def _lost(verdict: dict[str, Any]) -> str:
    return " †" if verdict.get("lost") else ""


def _missing(parts: dict[str, Part | None]) -> str:
    """``seed 0: FedAdam, FedExP; more seeds: FedAvg``: the runs on MNIST that the figures of the table lack."""
    first: dict[str, None] = {}
    more: dict[str, None] = {}
    for name in dict.fromkeys(name for name, _, _ in CLAIMS_IN_WORDS):
        part = parts.get(name)
        lines = (
            [line.removeprefix("mnist: ") for line in part["missing"] if line.startswith("mnist: ")]
            if part
            else ["all"]
        )
        for line in lines:
            if line.startswith("all"):
                first[f"all of {name}"] = None
            for words, seeds in re.findall(r"([^;]+) \(seeds? ([\d, ]+)\)", line):
                if "Dirichlet 0.5" not in words:  # there a run is one of the other figures'
                    label = words.strip().replace(", ", " at ")
                    (first if seeds[0] == "0" else more)[label] = None
                    more |= {label: None} if "," in seeds else {}
    found = [f"{words}: {', '.join(labels)}" for words, labels in (("seed 0", first), ("more seeds", more)) if labels]
    return "; ".join(found)


def _after(parts: dict[str, Part | None], *, lost: bool) -> list[str]:
    absent = [(name, words) for name, words in _ELSEWHERE if not (parts.get(name) or {}).get("done")]
    elsewhere = "".join(f"{words} ([{name}](docs/results/{name}.md)); " for name, words in absent)
    missing = _missing(parts)
    return [
        "“Cannot tell”: a difference, either way, of less than half a point with one seed, or than the standard error",
        "of several. The runs are in `docs/results/runs/`."
        + (" †: published by an earlier session whose runs were not kept." if lost else ""),
        f"**Missing on MNIST**, {missing}." if missing else "On MNIST every run that these rows ask for is there.",
        f"Not run in the paper's setting: {elsewhere}CIFAR-10 and Shakespeare, which want a GPU there.",
    ]
