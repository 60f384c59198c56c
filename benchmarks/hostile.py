"""What hostile clients do to a run: attacks × their share × methods × defences, on the digits.

    python benchmarks/hostile.py --smoke                 two attacks on two methods, a minute
    python benchmarks/hostile.py                         everything below, resumable; about ten minutes of one core
    python benchmarks/hostile.py --tables                only print the tables from the runs that are there

Ten clients (Dirichlet 0.5), all of them in every round, so that a share is what it says; an MLP, 40 rounds. An attack
is one of ``fedhyper.sim.engines.hostile.ATTACKS``; hostile clients are numbers 0 to n − 1 of a fixed shuffle.

    single    every attack by one client of ten, on the default method, three seeds
    share     five attacks by 1, 2 and 3 of ten, on six methods, one seed
    cost      nobody hostile: 10 and 100 clients, Dirichlet 0.5 and 0.1, three seeds, with and without each defence

Defences: off (``norm_cap = 0``), default (``norm_cap`` as it comes), robust (``aggregate = "median"``, too). A score is
the accuracy averaged over the last five rounds. ``OUT/runs.jsonl`` has a line a run, docs/security.md the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedhyper.guard import NORM_CAP
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.build import make_simulation
from fedhyper.sim.engines.hostile import ATTACKS, HostileEngine

METHODS = ("fedavg", "fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-g+cl", "fedadam")
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
    for attack in ATTACKS:
        for seed in range(3):
            yield Case("single", "fedhyper", attack, 1, "default", seed)
        for defence in ("off", "robust"):
            yield Case("single", "fedhyper", attack, 1, defence)
    for method in METHODS:
        for defence in ("default", "robust"):
            yield Case("share", method, "", 0, defence)
            for hostile in (1, 2, 3):
                for attack in WORST:
                    yield Case("share", method, attack, hostile, defence)
    for clients in (10, 100):
        for concentration in (0.5, 0.1):
            for method in ("fedavg", "fedhyper"):
                for defence in DEFENCES:
                    for seed in range(3):
                        yield Case("cost", method, "", 0, defence, seed, clients, concentration)


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
    found = {"rollbacks": 0, "refused": 0}
    accuracies, local, server = [], [], []
    for t in range(case.rounds):
        record = simulation.run_round(evaluate=t >= case.rounds - 5)
        found["rollbacks"] += record["rollback"]
        found["refused"] += record["clients_rejected"]
        local.append(simulation.server_state.local_lr)
        server.append(record["global_lr"])
        if record["accuracy"] is not None:
            accuracies.append(record["accuracy"])
    simulation.close()
    rates = {"local_lr": [min(local), max(local)], "global_lr": [min(server), max(server)]}
    return found | rates | {"accuracy": statistics.fmean(accuracies)}


def tables(done: dict[Case, dict[str, Any]]) -> str:
    """Markdown."""

    def score(**parts: Any) -> str:
        rows = [result for case, result in done.items() if all(getattr(case, k) == v for k, v in parts.items())]
        return f"{100 * statistics.fmean(r['accuracy'] for r in rows):.1f}" if rows else "–"

    lines = ["| attack by one of ten | no defence | default | its worst seed | robust | rates sent | rollbacks |"]
    lines.append("|---|---|---|---|---|---|---|")
    for attack in ("", *ATTACKS):
        rows = [r for c, r in done.items() if (c.part, c.attack, c.defence) == ("single", attack, "default")]
        if not rows:
            continue
        low, high = min(r["local_lr"][0] for r in rows), max(r["local_lr"][1] for r in rows)
        cells = [score(part="single", attack=attack, defence=d) for d in ("off", "default", "robust")]
        worst = f"{100 * min(r['accuracy'] for r in rows):.1f}"
        rolled = sum(r["rollbacks"] for r in rows)
        name = attack or "(nobody)"
        lines.append(
            f"| {name} | {cells[0]} | **{cells[1]}** | {worst} | {cells[2]} | {low:.2g} to {high:.2g} | {rolled} |"
        )
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
    lines += ["", "| nobody hostile | no defence | default | robust |", "|---|---|---|---|"]
    for method in ("fedavg", "fedhyper"):
        for clients in (10, 100):
            for concentration in (0.5, 0.1):
                parts = {"part": "cost", "method": method, "clients": clients, "concentration": concentration}
                cells = [score(**parts, defence=defence) for defence in DEFENCES]
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
    wanted = list(cases())
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
