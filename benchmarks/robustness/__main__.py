"""How far fedhyper ends from a tuned rival, axis by axis; what is finished is not run again.

    python -m benchmarks.robustness --list                       what there is, and about what it costs
    python -m benchmarks.robustness skew cohort --tasks digits   two axes, on the digits alone
    python -m benchmarks.robustness --pages docs/results         everything, and the page (make bench-robustness)
    python -m benchmarks.robustness --tables --pages docs/results   only the page, of what is finished
    python -m benchmarks.robustness --smoke                      all parts once, on four rounds of digits

Runs are cells of a sweep in --out: stopping costs nothing but the round at work, fedhyper report OUT/cells/NAME shows
one setting, fedhyper report OUT all. What they gave is kept in --store, which is committed: a run that is in it is not
run again, so a changed rule is judged by running its own cells alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.robustness import cost, known_sst2, page
from benchmarks.robustness.axes import AXES, SMOKE
from benchmarks.robustness.judging import wanted
from benchmarks.robustness.oracle import grid
from benchmarks.robustness.runs import Want, measure
from benchmarks.robustness.settings import Axis, Setting
from benchmarks.robustness.store import Store
from fedhyper.errors import UserError
from fedhyper.lab.plugins import import_modules
from fedhyper.lab.sweep.display import make_sweep_display
from fedhyper.lab.sweep.run import run_sweep
from fedhyper.sim.data.files import dataset_status

ROOT = Path(__file__).parents[2]


def groups(axes: dict[str, Axis], families: Sequence[str]) -> Iterator[tuple[str, list[Setting]]]:
    """What is run together: the digits of an axis, then all else setting by setting, so that whole rows come early."""
    for family in families:
        for name, axis in axes.items():
            rows = [row for row in axis.rows if row.family == family]
            together = dict[str, list[Setting]]()
            for row in rows:
                together.setdefault("" if family == "digits" else row.key, []).append(row)
            yield from ((name, some) for some in together.values())


def without_data(axes: dict[str, Axis], families: Sequence[str]) -> dict[str, str]:
    """The tasks that cannot be run here, each with what to say about it."""
    rows = [row for axis in axes.values() for row in axis.rows if row.family in families]
    tasks = {row.values["task"] for row in rows} - {"digits"}
    status = dataset_status(sorted(tasks - {"sst2"}), check=False)
    absent = {
        one.name: f"no data: {one.name}; fedhyper data fetch {one.name}" for one in status if one.state == "missing"
    }
    lacking = known_sst2.missing() if "sst2" in tasks else None
    return absent | ({"sst2": lacking} if lacking else {})


def complete(settings: Sequence[Setting], store: Store, out: Path, jobs: int | None, quiet: bool) -> None:
    """Run what these settings want, stage by stage, until they want nothing."""
    while wants := list({(one.setting.key, one.word): one for row in settings for one in wanted(row, store)}.values()):
        run(wants, store, out, jobs, quiet)


def run(wants: Sequence[Want], store: Store, out: Path, jobs: int | None, quiet: bool) -> None:
    """Run these, and keep what they gave."""
    cells = [one.cell for one in wants]
    display = make_sweep_display(quiet=quiet)
    outcomes = run_sweep(cells, out, description={"benchmark": "robustness"}, jobs=jobs, display=display)
    for want, outcome in zip(wants, outcomes, strict=True):
        if outcome.status == "failed":
            raise UserError(f"{outcome.cell.name}: {outcome.message}")
        store.put(want, measure(outcome.cell, out))
    store.save()


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)}; none: all")
    parser.add_argument("--tasks", choices=["digits", "images"], help="digits alone, or all but them")
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"), help="where the runs are")
    parser.add_argument("--store", type=Path, default=ROOT / "benchmarks" / "oracle.json", help="what they gave")
    parser.add_argument("--pages", type=Path, help="where the page is to be published, such as docs/results")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: cores)")
    parser.add_argument("--list", action="store_true", help="print the plan with its cost, and run nothing")
    parser.add_argument("--tables", action="store_true", help="write the page from what is there, and run nothing")
    parser.add_argument("--grid", action="store_true", help="also the rivals' whole grid on the digits (324 runs)")
    parser.add_argument("--smoke", action="store_true", help="under two minutes; writes into --out only")
    args = parser.parse_args()
    try:
        _main(args)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _main(args: argparse.Namespace) -> None:
    # by its name, and in every process that runs cells
    import_modules(["benchmarks.robustness.known_liars", "benchmarks.robustness.known_sst2"], ROOT)
    for name in args.axes:
        if name not in AXES:
            raise UserError(f"there is no axis '{name}'; choose of {', '.join(AXES)}")
    axes = {name: AXES[name] for name in args.axes or AXES}
    if args.smoke:
        axes, args.out, args.pages = SMOKE, args.out / "smoke", None
        args.store, args.jobs = args.out / "oracle.json", 1  # to start a second process takes longer than the runs
    families = [args.tasks] if args.tasks else ["digits", "images"]
    store = Store(args.store)
    absent = {} if args.tables else without_data(axes, families)
    for said in absent.values():
        print(said)
    todo = [(name, rows) for name, rows in groups(axes, families) if rows[0].values["task"] not in absent]
    if args.list:
        print(cost.plan(todo, store))
        return
    if not args.tables:
        for name, rows in todo:
            if any(wanted(row, store) for row in rows):
                print(f"{name}: {rows[0].name}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}", flush=True)
                complete(rows, store, args.out, args.jobs, quiet=args.smoke)
                page.write(SMOKE if args.smoke else AXES, store, args.out, args.pages)
        if args.grid:
            base = next(row for row in AXES["skew"].rows if row.name == page.GRID_ON)
            wants = [Want(base, rival, seed) for rival in grid(base.middle) for seed in base.seeds]
            wants = [one for one in wants if store.get(one) is None]
            if wants:
                run(wants, store, args.out, args.jobs, quiet=False)
    print(page.write(SMOKE if args.smoke else AXES, store, args.out, args.pages))


if __name__ == "__main__":
    main()
