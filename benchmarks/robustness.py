"""How far from a tuned run a method ends, from every pair of initial rates: 5 local × 5 global ones.

    python benchmarks/robustness.py --smoke                      2 × 2 cells on digits, under two minutes
    python benchmarks/robustness.py                              everything below whose data is there, resumable
    python benchmarks/robustness.py --tasks fmnist --methods fedavg fedhyper
    python benchmarks/robustness.py --tables                     only rewrite the tables from the cells that are there

A run is a method, a local rate, a global rate and a seed; they are the cells of a sweep in --out (see cells.py), so
stopping costs nothing but the round at work. fedhyper does not read the initial rates: its pairs are one run, made once
and counted once a pair. Equal rounds and local work for all methods, but for fedhyper's first round (docs/maths.md).

    digits                  every method on the grid; three seeds for fedavg, fedhyper and fedhyper-g+cl
    fmnist, mnist           those three on the grid, every other method on its row of global rate 1
    cifar10, shakespeare    those three on that row and the four corners, five others on the row
    all but digits          seeds 1 and 2, too, of fedavg's best cell and fedhyper's worst (by seed 0)

A cell's score is the accuracy averaged over the last five rounds.
tables.md, heatmaps.json and the SVGs in --out are what docs/results/robustness.md is made from.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cells import Setting, complete, is_done, make_cell, records, score

from fedhyper.errors import UserError
from fedhyper.lab.sweep.grid import Cell
from fedhyper.sim.data.files import dataset_status

LOCAL = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
GLOBAL = (0.1, 0.5, 1.0, 2.0, 10.0)
MAIN = ("fedavg", "fedhyper", "fedhyper-g+cl")
OTHERS = (
    *("fedhyper-g", "fedhyper-sl", "fedhyper-cl", "fedexp", "fedadam", "fedyogi", "fedadagrad", "fedavgm"),
    *("decay-g", "decay-sl", "local-adam", "fedprox", "delta-sgd", "fedsps"),
)


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


class Point(NamedTuple):
    """A method at a pair of initial rates, with a seed: one entry of a table before it is averaged."""

    setting: str
    method: str
    local_lr: float
    global_lr: float
    seed: int

    @property
    def cell(self) -> Cell:
        """The run it stands for; fedhyper does not read its initial rates."""
        s, rates = SETTINGS[self.setting], (self.local_lr, self.global_lr)
        if self.method == "fedhyper":
            rates = GRID[0]
        return make_cell(self.setting, s, self.method, rates, self.seed, every=max(s.rounds // 10, 1))


def result(point: Point, out: Path) -> dict[str, Any]:
    """What a table and a figure need of a run; accuracies are fractions."""
    rounds = records(point.cell, out)
    curve = [[r["round"], r["accuracy"]] for r in rounds if r["accuracy"] is not None]
    return {**point._asdict(), "score": score(rounds), "curve": curve}


def protocol(args: argparse.Namespace) -> Iterator[Point]:
    """The protocol, in the order that fills the tables soonest: one seed of everything, then the others."""
    smoke = tuple((b, a) for b in (1e-3, 1e-1) for a in (1.0, 2.0))
    for seed in range(args.seeds or 3):
        for setting in args.tasks:
            for method in args.methods:
                seeds = args.seeds or (3 if SETTINGS[setting].task == "digits" else 1)
                if seed < (seeds if method in MAIN else 1):
                    rates = smoke if args.smoke else wanted(setting, method)
                    yield from (Point(setting, method, b, a, seed) for b, a in rates)


def decisive(points: Iterable[Point], out: Path) -> Iterator[Point]:
    """Seeds 1 and 2 of the two entries that the comparison hangs on, where the grid has one seed."""
    known = [result(point, out) for point in points if point.seed == 0 and point.method in ("fedavg", "fedhyper")]
    for setting in dict.fromkeys(r["setting"] for r in known if SETTINGS[r["setting"]].task != "digits"):
        for method, choose in (("fedavg", max), ("fedhyper", min)):
            mine = [r for r in known if (r["setting"], r["method"]) == (setting, method)]
            if mine:
                chosen = choose(mine, key=lambda r: float(r["score"]))
                yield from (Point(setting, method, chosen["local_lr"], chosen["global_lr"], seed) for seed in (1, 2))


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
        words = {"x_title": "initial local rate (global rate 1)", "y_title": "test accuracy, last five rounds"}
        save(rate_chart(against, shown, **words), out / f"{setting}-rates.svg")


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), help=f"default: {' '.join(PROTOCOL)}")
    parser.add_argument("--methods", nargs="+", default=[*MAIN, *OTHERS], choices=[*MAIN, *OTHERS])
    parser.add_argument("--seeds", type=int, default=None, help="of the main methods (default: digits 3, others 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--jobs", type=int, default=None, help="cells at a time (default: cores)")
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
    points = list(protocol(args))
    try:
        if not args.tables:
            complete([point.cell for point in points], args.out, jobs=args.jobs)
        there = [point for point in points if is_done(point.cell, args.out)]
        if not args.smoke:
            more = list(decisive(there, args.out))
            if not args.tables:
                complete([point.cell for point in more], args.out, jobs=args.jobs)
            there += [point for point in more if is_done(point.cell, args.out)]
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    done = [result(point, args.out) for point in dict.fromkeys(there)]
    tables(args.out, done)
    figures(args.out, done)


if __name__ == "__main__":
    main()
