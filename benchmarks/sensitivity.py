"""What fedhyper's result hangs on: other federated settings, each constant halved and doubled, what its cosine sees.

    python benchmarks/sensitivity.py axes                  digits in ten settings, against FedAvg's best cell
    python benchmarks/sensitivity.py axes --task fmnist --seeds 1
    python benchmarks/sensitivity.py constants             digits at Dirichlet 0.5 and 0.1, a row a constant
    python benchmarks/sensitivity.py constants --task fmnist --seeds 1
    python benchmarks/sensitivity.py cosines --task cifar10

fedhyper starts at 0.001, which all starts above it become. FedAvg's best is the best of six cells, local rate 0.1 or 1
and global rate 0.5, 1 or 2, by the mean over seeds (fmnist: of three, since a local rate of 1 is at chance there);
"with decay" is the best of four decays of the local rate in that cell (fmnist: in the first row only). Rounds are those
to 95 % of FedAvg's best accuracy, the mean over seeds. Accuracies in percent, last five rounds. fmnist runs for 30
rounds here, so that both tables fit into an hour of one core. Runs are cells of a sweep in --out (see cells.py): the
same command goes on where it was stopped. (The row on bfloat16 in docs/results/robustness.md was measured with a
``Simulation(dtype=...)``; configs have no key for it yet.)

The cosines are those of FedAvg at constant rates, seed 0: mean and standard deviation over the middle third of the
rounds of cos(Δ_t, Δ_t-1) and of cos(Δ_t, M_t-1), M_t = Δ_t + 0.8 · M_t-1, which is what fedhyper reads.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from cells import Setting, complete, make_cell, records, score
from robustness import SETTINGS

from fedhyper import Auto
from fedhyper.arrays import cosine
from fedhyper.errors import UserError
from fedhyper.lab.running.build import make_simulation
from fedhyper.lab.sweep.grid import Cell

Records = list[dict[str, Any]]
START = (0.001, 1.0)
LOCAL = {"digits": (0.1, 1.0), "fmnist": (0.1,)}
RATES = {
    "digits": (0.05, 0.2, 0.5, 1.0, 2.0),
    "fmnist": (0.01, 0.03, 0.1, 0.2, 0.4),
    "cifar10": (0.01, 0.03, 0.06, 0.1, 0.2),
}
DECAYS = (0.995, 0.98, 0.96, 0.94)


BASE = {"digits": SETTINGS["digits"], "fmnist": SETTINGS["fmnist"]._replace(rounds=30)}


def settings(task: str) -> dict[str, tuple[Setting, str]]:
    """The settings of the table, and what is on the server."""
    base = BASE[task]
    many, rounds = (", one local step", 40) if task == "digits" else ("", 12)
    return {
        "Dirichlet 0.5, as in the grid": (base, ""),
        "Dirichlet 0.1": (base._replace(concentration=0.1), ""),
        "IID": (base._replace(kind="iid"), ""),
        f"5 of {base.clients} clients a round": (base._replace(clients_per_round=5), ""),
        f"50 of 100 clients a round{many}": (base._replace(clients=100, clients_per_round=50), ""),
        f"10 local epochs, {rounds} rounds": (base._replace(local_epochs=10, rounds=rounds), ""),
        "server momentum 0.9": (base, "+momentum"),
        "server Adam, grafted": (base, "+adam"),
        "BatchNorm: ResNet-18 of width 4, 5 of 10 clients a round, IID, 30 rounds": (
            base._replace(
                model="resnet18",
                options={"width": 4, "norm": "batch"},
                kind="iid",
                clients=10,
                clients_per_round=5,
                rounds=30,
                subset=0 if task == "digits" else 3_000,
            ),
            "",
        ),
    }


TUNED = {"": "fedavg", "+momentum": "fedavgm", "+adam": "fedadam"}
GLOBAL = {"": (0.5, 1.0, 2.0), "+momentum": (0.1, 0.5, 1.0), "+adam": (0.01, 0.1, 0.5)}


def mean(runs: Sequence[Records]) -> float:
    """Score over seeds, in percent."""
    return 100 * statistics.fmean(score(one) for one in runs)


def to_target(runs: Sequence[Records], target: float) -> str:
    """Mean number of rounds to an accuracy; – when a run never gets there."""
    firsts = [next((r["round"] for r in records if (r["accuracy"] or 0) >= target), None) for records in runs]
    known = [first for first in firsts if first is not None]
    return f"{statistics.fmean(known):.0f}" if len(known) == len(firsts) else "–"


def run_all(cells: Sequence[Cell], out: Path) -> list[Records]:
    """Run what is not there; the rounds of each."""
    complete(cells, out)
    return [records(cell, out) for cell in cells]


def axes(task: str, seeds: int, out: Path) -> None:
    """One row a setting."""
    print("| setting | fedhyper, worst seed | FedAvg's best | at | with decay | rounds: fedhyper, FedAvg | retreats |")
    print("|---|---|---|---|---|---|---|")
    for i, (name, (setting, suffix)) in enumerate(settings(task).items()):
        many, every = range(1 if setting.model == "resnet18" else seeds), 1 if task == "digits" else 2
        pairs = [(b, a) for b in LOCAL[task] for a in GLOBAL[suffix]]
        decays = DECAYS if not suffix and (task == "digits" or i == 0) else ()

        def runs(
            method: str, rates: tuple[float, float], *, s: Setting = setting, n: str = f"{task}-{name}",
            seeds: Sequence[int] = many, each: int = every, **options: Any,
        ) -> list[Cell]:  # fmt: skip
            return [make_cell(n, s, method, rates, seed, every=each, **options) for seed in seeds]

        mine, theirs = runs(f"fedhyper{suffix}", START), {pair: runs(TUNED[suffix], pair) for pair in pairs}
        complete([*mine, *(cell for cells in theirs.values() for cell in cells)], out)
        ours = run_all(mine, out)
        tuned = {pair: run_all(cells, out) for pair, cells in theirs.items()}
        at = max(tuned, key=lambda pair: mean(tuned[pair]))
        decayed = max((mean(run_all(runs("decay-sl", at, factor=f), out)) for f in decays), default=None)
        target = 0.95 * mean(tuned[at]) / 100
        rounds = f"{to_target(ours, target)}, {to_target(tuned[at], target)}"
        worst = 100 * min(score(one) for one in ours)
        retreats = sum(r["rollback"] for one in ours for r in one)
        print(
            f"| {name} ({len(many)}) | {mean(ours):.1f}, {worst:.1f} | {mean(tuned[at]):.1f} | {at[0]:g} × {at[1]:g} "
            f"| {'–' if decayed is None else f'{decayed:.1f}'} | {rounds} | {retreats} |",
            flush=True,
        )


_MOST = {"share": 1.0}


def constants(task: str, seeds: int, out: Path) -> None:
    """One row a constant, halved and doubled; the ratio by its root and its square, the share at most 1."""
    both = {task: BASE[task]}
    if task == "digits":
        both["digits-skewed"] = BASE[task]._replace(concentration=0.1)

    def scores(**options: Any) -> str:
        cells = {
            name: [make_cell(name, s, "fedhyper", START, seed, every=60, **options) for seed in range(seeds)]
            for name, s in both.items()
        }
        complete([cell for some in cells.values() for cell in some], out)
        return " / ".join(f"{mean(run_all(some, out)):.1f}" for some in cells.values())

    print(f"| constant | default | halved | doubled |\n|---|---|---|---|\n| (all at default) | | {scores()} | |")
    for field in fields(Auto):
        value = field.default
        if field.name in ("local_lr", "global_lr") or not isinstance(value, float | int):
            continue
        factor = field.name == "ratio"
        less, more = (
            (value**0.5, value**2) if factor else (type(value)(value / 2), min(2 * value, _MOST.get(field.name, 1e9)))
        )
        if field.name == "momentum":  # it remembers 1/(1 − momentum) rounds
            less, more = 1 - 2 * (1 - value), 1 - (1 - value) / 2
        note = " (√, square)" if factor else " (its memory)" if field.name == "momentum" else ""
        row = [scores(**{field.name: one}) for one in (less, more)]
        print(f"| {field.name}{note} | {value:g} | {' | '.join(row)} |", flush=True)


def cosines(task: str) -> None:
    """One row a rate."""
    print("| FedAvg's local rate | accuracy | cos(Δ_t, Δ_t-1) | cos(Δ_t, M_t-1) |\n|---|---|---|---|")
    setting = SETTINGS[task]
    third = setting.rounds // 3
    for rate in RATES[task]:
        cell = make_cell(task, setting, "fedavg", (rate, 1.0), 0, every=setting.rounds)
        run, seen = make_simulation(cell.config, workers=1), []
        last: torch.Tensor | float = 0.0
        step: torch.Tensor | float = 0.0
        weights = _flat(run.named_weights())
        for t in range(1, setting.rounds + 1):
            record = run.run_round(evaluate=t == setting.rounds)
            delta, weights = weights - _flat(run.named_weights()), _flat(run.named_weights())
            seen.append((float(cosine(delta, last)), float(cosine(delta, step))))
            last, step = delta, delta + 0.8 * step
        run.close()
        both = zip(*seen[third : 2 * third], strict=True)
        cells = [f"{statistics.fmean(h):+.2f} ± {statistics.pstdev(h):.2f}" for h in both]
        print(f"| {rate:g} | {100 * record['accuracy']:.1f} | {' | '.join(cells)} |", flush=True)


def _flat(named: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in named.values()])


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["axes", "constants", "cosines"])
    parser.add_argument("--task", default="digits", choices=list(RATES), help="cifar10: cosines only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    args = parser.parse_args()
    if args.table != "cosines" and args.task not in LOCAL:
        parser.error(f"{args.table} are of {' or '.join(LOCAL)}, not of {args.task}")
    try:
        if args.table == "cosines":
            cosines(args.task)
        elif args.table == "axes":
            axes(args.task, args.seeds, args.out)
        else:
            constants(args.task, args.seeds, args.out)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
