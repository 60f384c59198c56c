"""How far from a tuned run a method ends, from every pair of initial rates: 5 local × 5 global ones.

    python benchmarks/robustness.py --smoke                      2 × 2 cells on digits, under two minutes
    python benchmarks/robustness.py                              everything below whose data is there, resumable
    python benchmarks/robustness.py --tasks fmnist --methods fedavg fedhyper
    python benchmarks/robustness.py --tables                     only rewrite the tables from the cells that are there

A cell is one run: method, local rate, global rate, seed. Each leaves one JSON file in --out, and a cell whose file is
there is not run again, so stopping costs at most the cell at work. fedhyper starts at min(product of the rates,
probe): cells with the same start are the same run, made once and copied. Equal rounds and local work for all methods.

    digits                  every method on the grid; three seeds for fedavg, fedhyper and fedhyper-g+cl
    fmnist, mnist           those three on the grid, every other method on its row of global rate 1
    cifar10, shakespeare    those three on that row and the four corners, five others on the row
    all but digits          seeds 1 and 2, too, of fedavg's best cell and fedhyper's worst (by seed 0)

A cell's score is the accuracy averaged over the last five rounds: on 360 test images one round alone says little;
``final`` is in the files, too.
tables.md, heatmaps.json and the SVGs in --out are what docs/results/robustness.md is made from.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedhyper import Auto
from fedhyper.sim.data.files import dataset_status
from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import Task, load_task
from fedhyper.sim.methods import make_method
from fedhyper.sim.models import make_model
from fedhyper.sim.simulation import Simulation

LOCAL = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
GLOBAL = (0.1, 0.5, 1.0, 2.0, 10.0)
MAIN = ("fedavg", "fedhyper", "fedhyper-g+cl")
OTHERS = (
    *("fedhyper-g", "fedhyper-sl", "fedhyper-cl", "fedexp", "fedadam", "fedyogi", "fedadagrad", "fedavgm"),
    *("decay-g", "decay-sl", "local-adam", "fedprox", "delta-sgd", "fedsps"),
)


class Setting(NamedTuple):
    """A task, and how a round goes."""

    task: str
    model: str
    rounds: int
    clients: int
    batch_size: int
    options: dict[str, Any]
    kind: str = "dirichlet"
    clients_per_round: int = 10
    local_epochs: int = 1
    local_steps: int = 0
    subset: int | None = None  # training examples; None: all
    concentration: float = 0.5
    dtype: torch.dtype = torch.float32


_LSTM: dict[str, Any] = {"hidden": 64, "layers": 1}
SETTINGS = {
    "digits": Setting("digits", "mlp", 60, 30, 16, {}),
    "digits-logistic": Setting("digits", "logistic", 60, 30, 16, {}),
    "mnist": Setting("mnist", "cnn", 50, 100, 64, {}, subset=15_000),
    "fmnist": Setting("fmnist", "cnn", 50, 100, 64, {}, subset=15_000),
    "fmnist-all": Setting("fmnist", "cnn", 50, 100, 64, {}),
    "cifar10": Setting("cifar10", "cnn", 100, 100, 32, {}, subset=10_000),
    "shakespeare": Setting("shakespeare", "lstm", 100, 100, 32, _LSTM, "natural", local_steps=5),
}
PROTOCOL = ("digits", "digits-logistic", "fmnist", "cifar10", "shakespeare")
GRID = tuple((b, a) for b in LOCAL for a in GLOBAL)
ROW = tuple((b, 1.0) for b in LOCAL)
CORNERS = tuple((b, a) for b in LOCAL[::4] for a in GLOBAL[::4])
FEW = ("fedexp", "fedadam", "delta-sgd", "fedhyper-sl", "fedhyper-cl")


def wanted(setting: str, method: str) -> tuple[tuple[float, float], ...]:
    """The cells of a method in the protocol: (local, global rate)."""
    task = SETTINGS[setting].task
    if method in MAIN:
        return GRID if task in ("digits", "fmnist", "mnist") else ROW + CORNERS
    if task == "digits":
        return GRID
    return ROW if task in ("fmnist", "mnist") or method in FEW else ()


class Cell(NamedTuple):
    """One run."""

    setting: str
    method: str
    local_lr: float
    global_lr: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where its result is kept."""
        return out / self.setting / self.method / f"{self.local_lr:g}x{self.global_lr:g}-seed{self.seed}.json"


@cache
def _task(name: str, subset: int | None) -> Task:
    return load_task(name, subset=subset)


def simulate(s: Setting, method: str, rates: tuple[float, float], seed: int, **options: Any) -> Simulation:
    """A run from these (local, global) rates, before its first round."""
    task = _task(s.task, s.subset)
    known = {"natural": {"groups": task.groups}, "dirichlet": {"concentration": s.concentration}}
    return Simulation(
        task=task,
        partition=make_partition(s.kind, task.train_y.numpy(), s.clients, seed=seed, **known.get(s.kind, {})),
        model=make_model(s.model, task.shape, task.classes, seed=seed, tokens=task.tokens, **s.options),
        method=make_method(method, local_lr=rates[0], global_lr=rates[1], **options),
        clients_per_round=s.clients_per_round,
        local_epochs=s.local_epochs,
        local_steps=s.local_steps,
        batch_size=s.batch_size,
        seed=seed,
        dtype=s.dtype,
    )


def train(
    s: Setting, method: str, rates: tuple[float, float], seed: int, every: int, **options: Any
) -> list[dict[str, Any]]:
    """The records of a run from these rates, evaluated every so often and in the last five rounds."""
    simulation = simulate(s, method, rates, seed, **options)
    records = [simulation.run_round(evaluate=t % every == 0 or t > s.rounds - 5) for t in range(1, s.rounds + 1)]
    simulation.close()
    return records


def score(records: list[dict[str, Any]]) -> float:
    """Accuracy, averaged over the last five rounds."""
    return statistics.fmean(r["accuracy"] for r in records[-5:])


def run(cell: Cell) -> dict[str, Any]:
    """Train one cell; accuracies are fractions."""
    s = SETTINGS[cell.setting]
    started = time.process_time()
    records = train(s, cell.method, (cell.local_lr, cell.global_lr), cell.seed, max(s.rounds // 10, 1))
    return {
        **cell._asdict(),
        "subset": s.subset,
        "rounds": s.rounds,
        "score": score(records),
        "final": records[-1]["accuracy"],
        "curve": [[r["round"], r["accuracy"]] for r in records if r["accuracy"] is not None],
        "local_lr_curve": [r["local_lr"] for r in records],
        "rollbacks": sum(r["rollback"] for r in records),
        "cpu_seconds": time.process_time() - started,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def twin(cell: Cell, out: Path) -> Path | None:
    """The file of a cell that is the same run: fedhyper knows its initial rates only as the rate it starts from."""
    if cell.method != "fedhyper":
        return None
    start = Auto(local_lr=cell.local_lr, global_lr=cell.global_lr).start
    grid = (cell._replace(local_lr=b, global_lr=a) for b in LOCAL for a in GLOBAL)
    return next(
        (
            c.file(out)
            for c in grid
            if Auto(local_lr=c.local_lr, global_lr=c.global_lr).start == start and c.file(out).exists()
        ),
        None,
    )


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """The protocol, in the order that fills the tables soonest: one seed of everything, then the others."""
    smoke = tuple((b, a) for b in (1e-3, 1e-1) for a in (1.0, 2.0))
    for seed in range(args.seeds or 3):
        for setting in args.tasks:
            for method in args.methods:
                seeds = args.seeds or (3 if SETTINGS[setting].task == "digits" else 1)
                if seed < (seeds if method in MAIN else 1):
                    rates = smoke if args.smoke else wanted(setting, method)
                    yield from (Cell(setting, method, b, a, seed) for b, a in rates)


def decisive(args: argparse.Namespace) -> Iterator[Cell]:
    """Seeds 1 and 2 of the two cells that the comparison hangs on, where the grid has one seed."""
    for setting in args.tasks:
        for method, choose in (("fedavg", max), ("fedhyper", min)):
            files = sorted((args.out / setting / method).glob("*-seed0.json"))
            if method in args.methods and SETTINGS[setting].task != "digits" and files:
                chosen = choose((json.loads(file.read_text()) for file in files), key=lambda r: float(r["score"]))
                yield from (Cell(setting, method, chosen["local_lr"], chosen["global_lr"], seed) for seed in (1, 2))


def complete(todo: Iterable[Cell], out: Path) -> None:
    """Run the cells that are not there."""
    missing = [cell for cell in todo if not cell.file(out).exists()]
    for i, cell in enumerate(missing, 1):
        same = twin(cell, out)
        result = run(cell) if same is None else {**json.loads(same.read_text()), **cell._asdict(), "copied": True}
        file = cell.file(out)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        os.replace(part, file)
        print(f"{i}/{len(missing)} {' '.join(map(str, cell))}: {100 * result['score']:.1f} %", flush=True)


def tables(out: Path, done: list[dict[str, Any]]) -> None:
    """tables.md and heatmaps.json from whatever cells are there."""
    lines, heatmaps = [], []
    for setting in dict.fromkeys(r["setting"] for r in done):
        summary = []
        maps = {}
        for method in dict.fromkeys(r["method"] for r in done if r["setting"] == setting):
            mine = [r for r in done if (r["setting"], r["method"]) == (setting, method)]
            grid: dict[tuple[float, float], list[float]] = {}
            for r in mine:
                grid.setdefault((r["local_lr"], r["global_lr"]), []).append(100 * r["score"])
            means = {cell: statistics.fmean(scores) for cell, scores in grid.items()}
            maps[method] = means
            seeds = sorted({len(scores) for scores in grid.values()})
            summary.append(
                (min(means.values()), method, means, "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))))
            )
            heatmaps += [
                {"setting": setting, "method": method, "local_lr": b, "global_lr": a, "accuracy": value / 100}
                for (b, a), value in means.items()
            ]
        lines += [
            f"## {setting}",
            "",
            "| method | cells | seeds | worst | mean | best | at |",
            "|---|---|---|---|---|---|---|",
        ]
        for worst, method, means, seeds_ in sorted(summary, reverse=True):
            top = max(means, key=means.__getitem__)
            mean = statistics.fmean(means.values())
            at = f"{top[0]:g} × {top[1]:g}"
            lines.append(f"| {method} | {len(means)} | {seeds_} | {worst:.1f} | {mean:.1f} | {means[top]:.1f} | {at} |")
        lines.append("")
        for method in (m for m in MAIN if m in maps):
            columns = sorted({a for _, a in maps[method]})
            lines += [f"{method}, local rate down, global rate across", ""]
            lines += ["| |" + "".join(f" {a:g} |" for a in columns), "|---|" + "---|" * len(columns)]
            for b in sorted({b for b, _ in maps[method]}):
                row = [maps[method].get((b, a)) for a in columns]
                lines.append(f"| {b:g} |" + "".join(" – |" if v is None else f" {v:.1f} |" for v in row))
            lines.append("")
    (out / "tables.md").write_text("\n".join(lines), encoding="utf-8")
    (out / "heatmaps.json").write_text(json.dumps(heatmaps, indent=1), encoding="utf-8")
    print("\n".join(lines))


def figures(out: Path, done: list[dict[str, Any]]) -> None:
    """For every task: accuracy over both initial rates, by round from five local rates, and against the local rate."""
    import altair as alt

    from fedhyper.lab.results.charts.chart import Chart, save
    from fedhyper.lab.results.charts.rates import rate_chart

    for setting in dict.fromkeys(r["setting"] for r in done):
        mine = [r for r in done if r["setting"] == setting]
        order = [m for m in ("fedavg", "fedhyper-g+cl", "fedhyper") if any(r["method"] == m for r in mine)]
        scores: dict[tuple[str, float, float], list[float]] = {}
        for r in mine:
            scores.setdefault((r["method"], r["local_lr"], r["global_lr"]), []).append(r["score"])
        top = max(statistics.fmean(s) for (method, *_), s in scores.items() if method in order)

        cells = [
            {"method": m, "local": f"{b:g}", "global": f"{a:g}", "value": statistics.fmean(s), "runs": len(s)}
            for (m, b, a), s in scores.items()
            if m in order
        ]
        rows = [c | {"text": f"{100 * c['value']:.1f}", "bright": c["value"] > 0.6 * top} for c in cells]
        gap = alt.Scale(paddingInner=0.04)
        base = alt.Chart().encode(
            x=alt.X("local:O", title="initial local rate", sort=[f"{b:g}" for b in LOCAL], scale=gap).axis(
                labelAngle=0
            ),
            y=alt.Y("global:O", title="initial global rate", sort=[f"{a:g}" for a in GLOBAL[::-1]], scale=gap),
        )
        scale = alt.Scale(scheme="viridis", domain=[0, top])
        heat = alt.layer(
            base.mark_rect(cornerRadius=3).encode(color=alt.Color("value:Q", scale=scale, legend=None)),
            base.mark_text(fontSize=11).encode(
                text="text:N", color=alt.condition("datum.bright", alt.value("#111111"), alt.value("#ffffff"))
            ),
            data=alt.NamedData("rows"),
        ).properties(width=230, height=150)
        facets = alt.Column("method:N", title=None, sort=order, header=alt.Header(labelFontSize=13))
        save(Chart(heat.facet(column=facets), {"rows": rows}), out / f"{setting}-map.svg")

        by_round = [
            {"method": r["method"], "rate": f"{r['local_lr']:g}", "round": t, "accuracy": accuracy}
            for r in mine
            if r["method"] in order and r["global_lr"] == 1.0 and r["seed"] == 0
            for t, accuracy in r["curve"]
        ]
        lines = (
            alt.Chart(alt.NamedData("rows"))
            .mark_line(strokeWidth=2)
            .encode(
                x=alt.X("round:Q", title="round"),
                y=alt.Y("accuracy:Q", title="test accuracy", axis=alt.Axis(format=".0%")),
                color=alt.Color("rate:N", title="initial local rate", sort=[f"{b:g}" for b in LOCAL]).legend(
                    orient="top"
                ),
            )
            .properties(width=230, height=200)
        )
        save(Chart(lines.facet(column=facets), {"rows": by_round}), out / f"{setting}-curves.svg")

        best = {m: max(statistics.fmean(s) for (n, *_), s in scores.items() if n == m) for m in {k[0] for k in scores}}
        shown = [*order[::-1], *sorted((m for m in best if m not in order), key=best.__getitem__, reverse=True)][:8]
        against = [
            {
                "series": m,
                "rate": b,
                "accuracy": statistics.fmean(s),
                "accuracy_lo": min(s),
                "accuracy_hi": max(s),
                "runs": len(s),
            }
            for (m, b, a), s in sorted(scores.items())
            if a == 1.0 and m in shown
        ]
        save(rate_chart(against, shown, x_title="initial local rate (global rate 1)"), out / f"{setting}-rates.svg")


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), help=f"default: {' '.join(PROTOCOL)}")
    parser.add_argument("--methods", nargs="+", default=[*MAIN, *OTHERS], choices=[*MAIN, *OTHERS])
    parser.add_argument("--seeds", type=int, default=None, help="of the main methods (default: digits 3, others 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--tables", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.tasks, args.methods, args.seeds = ["digits"], list(MAIN[:2]), 1
        args.out = args.out / "smoke"
    if not args.tasks:
        real = dataset_status([task for task in PROTOCOL if not task.startswith("digits")], check=False)
        missing = [one.name for one in real if one.state == "missing"]
        args.tasks = [task for task in PROTOCOL if task not in missing]
        if missing:
            print(f"left out, no data: {', '.join(missing)}; fedhyper data fetch {' '.join(missing)}")
    torch.set_num_threads(1)
    if not args.tables:
        complete(cells(args), args.out)
        complete(decisive(args), args.out)
    done = [json.loads(file.read_text()) for file in sorted(args.out.glob("*/*/*.json"))]
    tables(args.out, done)
    figures(args.out, done)


if __name__ == "__main__":
    main()
