"""What hostile clients do to a run: attacks × their share × methods × defences, on the digits.

    python benchmarks/hostile.py --smoke                 two attacks on two methods, a minute
    python benchmarks/hostile.py                         everything below, resumable; about ten minutes of one core
    python benchmarks/hostile.py --tables                only print the tables from the runs that are there

Ten clients (Dirichlet 0.5), all of them in every round, so that a share is what it says; an MLP, 40 rounds. An attack
is one of ``fedhyper.sim.engines.hostile.ATTACKS``; hostile clients are numbers 0 to n − 1 of a fixed shuffle.

    single    every attack by one client of ten, on the default method, Dirichlet 0.5 and 0.1, seeds 0 to 2
    unseen    the worst attacks, and a client left out, on seeds 6 to 8, which no rule was chosen on
    share     six attacks by 1, 2 and 3 of ten, on six methods, one seed
    cost      nobody, and one hostile client in ten: 10 and 100 clients, Dirichlet 0.5 and 0.1, seeds 0 to 2

Defences: off (``norm_cap = 0``), default (``norm_cap`` as it comes), robust (``aggregate = "median"``, too). A score is
the accuracy averaged over the last five rounds. ``OUT/runs.jsonl`` has a line a run, docs/security.md the tables.
Where a rate may be, and in how many rounds it was not ("outside"): G's from α₀/3 to 3α₀, SL's and CL's from β₀/10 to
10β₀, fedhyper's from three rungs below what its start found (a rung is √10) to one above.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedhyper.guard import NORM_CAP
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.build import make_simulation
from fedhyper.sim.engines.hostile import ATTACKS, HostileEngine

METHODS = ("fedavg", "fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-g+cl", "fedadam")
UNSEEN = ("not a number", "turned", "turned ×10", "last step ×100", "last step ×−100", "weight 2⁵³, turned")
SKEWS = (0.5, 0.1)  # Dirichlet
WORST = ("turned", "turned ×10", "× 1e6", "last step ×−100", "weight 2⁵³, turned", "loss 1e9")
DEFENCES: dict[str, dict[str, Any]] = {
    "off": {"norm_cap": 0.0},
    "default": {"norm_cap": NORM_CAP},
    "robust": {"norm_cap": NORM_CAP, "aggregate": "median"},
}


class Case(NamedTuple):
    """One run."""

    part: str
    method: str
    attack: str  # "": nobody is hostile
    hostile: int  # clients of ten
    defence: str
    seed: int = 0
    clients: int = 10
    concentration: float = 0.5
    rounds: int = 40


def cases() -> Iterator[Case]:
    """Everything, the most telling first."""
    for seed in range(3):
        for defence in ("default", "robust", "off"):
            yield Case("single", "fedhyper", "", 0, defence, seed)
        yield Case("single", "fedhyper", "", 0, "default", seed, concentration=0.1)
    for attack in ATTACKS:
        for seed in range(3):
            for concentration in SKEWS:
                yield Case("single", "fedhyper", attack, 1, "default", seed, concentration=concentration)
        for defence in ("off", "robust"):
            yield Case("single", "fedhyper", attack, 1, defence)
    for seed in range(6, 9):
        for concentration in SKEWS:
            for defence in ("default", "off"):
                yield Case("unseen", "fedhyper", "", 0, defence, seed, concentration=concentration)
            for attack in UNSEEN:
                yield Case("unseen", "fedhyper", attack, 1, "default", seed, concentration=concentration)
    for defence in ("default", "robust"):
        for method in METHODS:
            yield Case("share", method, "", 0, defence)
            for hostile in (1, 2, 3):
                for attack in WORST:
                    yield Case("share", method, attack, hostile, defence)
    for clients in (10, 100):
        for concentration in SKEWS:
            for seed in range(3):
                for method in ("fedavg", "fedhyper"):
                    for defence in DEFENCES:
                        yield Case("cost", method, "", 0, defence, seed, clients, concentration)
                yield Case("cost", "fedhyper", "turned ×10", 1, "default", seed, clients, concentration)


def run(case: Case) -> dict[str, Any]:
    """The run's accuracy, the lowest and highest local rate that was sent, rollbacks, and refused replies."""
    values = {
        **{"task": "digits", "model": "mlp", "batch_size": 10, "local_lr": 0.1, "clients_per_round": 10},
        **{"method": case.method, "clients": case.clients, "rounds": case.rounds, "seed": case.seed},
        **{"global_lr": 0.03 if case.method == "fedadam" else 1.0, "partition": {"concentration": case.concentration}},
        **DEFENCES[case.defence],
    }
    simulation = make_simulation(make_config(values, "hostile"), workers=1)
    order = np.random.default_rng(0).permutation(case.clients)
    if case.attack:
        who = {int(client) for client in order[: case.hostile * case.clients // 10]}
        simulation.engine = HostileEngine(simulation.engine, ATTACKS[case.attack], who)
    found = {"rollbacks": 0, "refused": 0, "outside": 0}
    accuracies, local, server = [], [], []
    start = simulation.server_state.local_lr
    for t in range(case.rounds):
        record = simulation.run_round(evaluate=t >= case.rounds - 5)
        found["rollbacks"] += record["rollback"]
        found["refused"] += record["clients_rejected"]
        local.append(simulation.server_state.local_lr)
        server.append(record["global_lr"])
        if t == 0 and case.method == "fedhyper":
            start = local[0]
        found["outside"] += not _inside(case.method, start, record, local[-1])
        if record["accuracy"] is not None:
            accuracies.append(record["accuracy"])
    simulation.close()
    rates = {"local_lr": [min(local), max(local)], "global_lr": [min(server), max(server)]}
    return found | rates | {"accuracy": statistics.fmean(accuracies)}


def _inside(method: str, start: float, record: Mapping[str, Any], local_lr: float) -> bool:
    """Whether this round's rates are where its method says they stay; up to rounding."""
    low, high = (10**-1.5, 10**0.5) if method == "fedhyper" else (0.1, 10.0)
    used = (record["local_lr_min"], record["local_lr_max"])
    rates = [local_lr / start] if method == "fedhyper" else [rate / start for rate in (local_lr, *used)]
    server = 0.333 <= record["global_lr"] <= 3.001 if "-g" in method else True
    return server and all(0.999 * low <= rate <= 1.001 * high for rate in rates)


def tables(done: dict[Case, dict[str, Any]]) -> str:
    """Markdown."""

    def select(**parts: Any) -> list[dict[str, Any]]:
        return [result for case, result in done.items() if all(getattr(case, k) == v for k, v in parts.items())]

    def score(**parts: Any) -> str:
        rows = select(**parts)
        return f"{100 * statistics.fmean(r['accuracy'] for r in rows):.1f}" if rows else "–"

    first = "attack by one of ten | no defence | robust"
    columns = [f"Dirichlet {c}: {word}" for c in SKEWS for word in ("default", "its worst seed", "rates sent")]
    lines = [f"| {first} | {' | '.join(columns)} | rollbacks |", "|---" * 10 + "|"]
    for attack in ("", *ATTACKS):
        cells = [score(part="single", attack=attack, defence=d, concentration=0.5) for d in ("off", "robust")]
        rolled = 0
        for concentration in SKEWS:
            parts = {"part": "single", "attack": attack, "defence": "default", "concentration": concentration}
            rows = select(**parts)
            if rows:
                low, high = min(r["local_lr"][0] for r in rows), max(r["local_lr"][1] for r in rows)
                worst = 100 * min(r["accuracy"] for r in rows)
                cells += [f"**{score(**parts)}**", f"{worst:.1f}", f"{low:.2g} to {high:.2g}"]
                rolled += sum(r["rollbacks"] for r in rows)
        lines.append(f"| {attack or '(nobody)'} | {' | '.join(cells)} | {rolled} |")
    lines += ["", f"| seeds 6 to 8, Dirichlet | nobody, no defence | nobody | {' | '.join(UNSEEN)} |"]
    lines.append("|---" * (len(UNSEEN) + 3) + "|")
    for concentration in SKEWS:
        parts = {"part": "unseen", "concentration": concentration}
        cells = [score(**parts, attack=attack, defence="default") for attack in ("", *UNSEEN)]
        lines.append(f"| {concentration} | {score(**parts, defence='off')} | {' | '.join(cells)} |")
    for defence in ("default", "robust"):
        lines += [
            "",
            f"| {defence}: attack, hostile of ten | {' | '.join(METHODS)} |",
            "|---" * (len(METHODS) + 1) + "|",
        ]
        below = {method: [0, 0] for method in METHODS[1:]}
        for attack, hostile in (("", 0), *((a, n) for a in WORST for n in (1, 2, 3))):
            parts = {"part": "share", "attack": attack, "hostile": hostile, "defence": defence}
            cells = {method: score(**parts, method=method) for method in METHODS}
            for method, counts in below.items():
                if "–" not in (cells[method], cells["fedavg"]):
                    worse = float(cells[method]) < float(cells["fedavg"])
                    counts[0], counts[1] = counts[0] + worse, counts[1] + 1
                    cells[method] += " ↓" if worse else ""
            lines.append(f"| {f'{attack}, {hostile}' if attack else '(nobody)'} | {' | '.join(cells.values())} |")
        words = [f"{method} {worse} of {rows}" for method, (worse, rows) in below.items() if rows]
        lines += ["", f"Rows below FedAvg (↓), {defence}: {', '.join(words)}."]
    outside = {method: sum(r["outside"] for r in select(method=method)) for method in METHODS}
    rounds = {method: sum(c.rounds for c in done if c.method == method) for method in METHODS}
    words = [f"{method} {outside[method]} of {rounds[method]:,}" for method in METHODS]
    lines += ["", f"Rounds with a rate outside its range, all runs: {', '.join(words)}."]
    lines += ["", "| | no defence | default | robust | turned ×10 by one in ten |", "|---|---|---|---|---|"]
    for method in ("fedavg", "fedhyper"):
        for clients in (10, 100):
            for concentration in SKEWS:
                parts = {"part": "cost", "method": method, "clients": clients, "concentration": concentration}
                cells = [score(**parts, attack="", defence=defence) for defence in DEFENCES]
                cells.append(score(**parts, attack="turned ×10"))
                lines.append(f"| {method}, {clients} clients, Dirichlet {concentration} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, default=Path("build/hostile"))
    parser.add_argument("--smoke", action="store_true", help="two attacks on two methods, 5 rounds")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "runs.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = {Case(*row["case"]): row["result"] for row in map(json.loads, lines)}
    wanted = sorted(cases(), key=lambda case: case.defence != "default")  # what is asked for most, first
    if options.smoke:
        some = [Case("single", "fedhyper", "", 0, "default"), Case("single", "fedhyper", "turned ×10", 1, "default")]
        wanted = [case._replace(rounds=5) for case in (*some, Case("share", "fedavg", "× 1e6", 2, "robust"))]
    for case in () if options.tables else wanted:
        if case not in done:
            done[case] = run(case)
            with file.open("a") as out:
                print(json.dumps({"case": case, "result": done[case]}), file=out)
    print(tables(done))


if __name__ == "__main__":
    main()
