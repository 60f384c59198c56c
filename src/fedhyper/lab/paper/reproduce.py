"""The paper, reproduced: ``fedhyper reproduce ID`` runs an experiment as a sweep, then writes figures, table, page.

    DIR/<id>/<scale>/cells/...      the runs; finished ones are kept, broken ones continued
    DIR/<id>/<scale>/figures/...    PNG, SVG and PDF
    DIR/<id>/<scale>/page.md table.csv part.json report-<task>.html

All state is in the runs: the same command goes on where the last one stopped, whatever stopped it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhyper.errors import CheckpointRefused, UserError, did_you_mean, printable
from fedhyper.lab.config.model import dump
from fedhyper.lab.paper.claims import verdicts
from fedhyper.lab.paper.cost import estimate
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.figures import draw
from fedhyper.lab.paper.measured import part
from fedhyper.lab.paper.planning import Planned, planned_runs
from fedhyper.lab.paper.publishing.lending import Shelf, of_this_rule
from fedhyper.lab.paper.publishing.pages import markdown, table_csv
from fedhyper.lab.paper.publishing.runs import RUNS
from fedhyper.lab.paper.publishing.write import publish_part, publish_runs
from fedhyper.lab.paper.results import Result, Results
from fedhyper.lab.paper.variants import Scale
from fedhyper.lab.results.report import FORMATS, write_report
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.running.words import duration
from fedhyper.lab.sweep.display import make_sweep_display
from fedhyper.lab.sweep.run import Outcome, ended_before, run_sweep
from fedhyper.storage.files import read_json, write_new

IDS = (*EXPERIMENTS, "all")


@dataclass(frozen=True)
class Job:
    """One experiment at one scale in its directory. ``tasks`` are the datasets to run; its page has them all."""

    name: str
    scale: Scale
    out: Path
    planned: list[Planned]
    tasks: tuple[str, ...]

    @property
    def timed(self) -> bool:
        """Whether its runs are measurements of time, which nobody can lend."""
        return EXPERIMENTS[self.name].timed

    @property
    def pending(self) -> list[Planned]:
        """The runs to do that have not come to their end."""
        rows = [row for row in self.planned if row.task in self.tasks]
        return [row for row in rows if not self.ended(row)]

    def ended(self, row: Planned) -> bool:
        """Whether the run came to its end; one that another learning-rate-free rule made is refused."""
        if ended_before(row.cell, self.out) is None:
            return False
        path = self.out / "cells" / row.cell.name
        if not of_this_rule(row.cell.config, read_json(path / "env.json")):
            what = f"{path} was made by another version of the learning-rate-free rule"
            raise CheckpointRefused(f"{what}; delete it to run it again, or choose another --out")
        return True


def make_jobs(names: Sequence[str], scale: Scale, out: Path, tasks: Sequence[str] = ()) -> list[Job]:
    """The experiments of these names on these datasets (none: on all); unknown ones are refused with the nearest."""
    for name in names:
        if name not in IDS:
            raise UserError(f"there is no experiment '{printable(name)}'; {did_you_mean(name, IDS)}")
        if name != "all" and scale not in EXPERIMENTS[name].scales:
            known = " and ".join(EXPERIMENTS[name].scales)
            raise UserError(f"{name} has no scale {scale}; use --scale {EXPERIMENTS[name].scales[-1]} (it has {known})")
    chosen = dict.fromkeys(one for name in names for one in (EXPERIMENTS if name == "all" else [name]))
    planned = {one: planned_runs(one, scale) for one in chosen if scale in EXPERIMENTS[one].scales}
    datasets = tuple(dict.fromkeys(row.task for rows in planned.values() for row in rows))
    for task in tasks:
        if task not in datasets:
            what = f"--tasks: no experiment named here has the dataset '{printable(task)}' at the scale {scale}"
            raise UserError(f"{what}; choose of {', '.join(datasets)}")
    return [Job(one, scale, out / one / scale, rows, tuple(tasks) or datasets) for one, rows in planned.items()]


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse before anything starts when a dataset is not there, with the data layer's own words."""
    from fedhyper.sim.data.files import dataset_status, load_files

    for task in dict.fromkeys(row.task for job in jobs for row in job.pending if row.task != "digits"):
        if dataset_status([task], check=False)[0].state == "missing":
            load_files(task)


def announce(jobs: Sequence[Job], *, parallel: int | None, device: str) -> None:
    """Print what will be run, how long it takes about, and how much disk it needs."""
    seen: set[str] = set()
    seconds, disk = 0.0, 0
    for job in jobs:
        new = [row.cell.config for row in job.pending if job.timed or dump(row.cell.config) not in seen]
        seen |= {dump(config) for config in new}
        cost = estimate(new, jobs=1 if job.timed else parallel, device=device)
        seconds, disk = seconds + cost.seconds, disk + cost.disk
        print(
            f"{job.name} ({job.scale}): {len(job.planned)} runs, {cost.runs} of them to do, "
            f"about {duration(cost.seconds)} and {cost.disk / 1e6:,.0f} MB",
            flush=True,
        )
    if not any(job.pending for job in jobs):
        print("nothing left to do", flush=True)
    elif len(jobs) > 1:
        print(f"together about {duration(seconds)} and {disk / 1e6:,.0f} MB", flush=True)


def run_job(job: Job, rows: Sequence[Planned], *, parallel: int | None, device: str, quiet: bool) -> list[Outcome]:
    """Run these of its rows; how each ended comes back."""
    return run_sweep(
        [row.cell for row in rows],
        job.out,
        description={"experiment": job.name, "scale": job.scale},
        jobs=1 if job.timed else parallel,
        device=device,
        display=make_sweep_display(quiet=quiet),
    )


def borrow(job: Job, *shelves: Shelf) -> int:
    """Copy what the job plans from finished runs of the same config on the first shelf that has one; how many had."""
    wanted = [(row, job.out / "cells" / row.cell.name) for row in job.planned]
    return sum(any(shelf.lend(row, target) for shelf in shelves) for row, target in wanted if not target.exists())


def gather(job: Job) -> Results:
    """What the finished runs of an experiment measured."""
    done = [row for row in job.planned if job.ended(row)]
    paths = [job.out / "cells" / row.cell.name for row in done]
    runs = {run.path.resolve(): run for run in load_runs(paths)} if paths else {}
    return Results(
        [
            Result(row.task, row.variant, row.level, row.seed, runs[path.resolve()])
            for row, path in zip(done, paths, strict=True)
        ]
    )


def write_pages(job: Job, pages: Path | None = None) -> Path:
    """Write figures, table, verdicts and pages of what is finished; with ``pages`` also the page to publish there."""
    results = gather(job)
    judged = verdicts(job.name, results, job.scale)
    figures = draw(job.name, job.scale, job.planned, results, job.out / "figures")
    record = part(job.name, job.scale, job.planned, results, judged, figures)
    write_new(job.out / "table.csv", table_csv(job.planned, results))
    write_new(job.out / "part.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for task in dict.fromkeys(one.task for one in results.items):
        paths = [one.run.path for one in results.items if one.task == task]
        write_report(paths, job.out / f"report-{task}.html", title=f"{job.name}, {task}, {job.scale}")
    if pages is not None:
        publish_runs(results, pages, timed=job.timed)
        publish_part(job.name, record, job.out / "figures", pages)
    return write_new(job.out / "page.md", markdown(job.name, [record], ["figures"]))


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    *,
    tasks: Sequence[str] = (),
    parallel: int | None = None,
    device: str = "cpu",
    pages: Path | None = None,
    run: bool = True,
    confirm: bool = False,
    quiet: bool = False,
) -> int:
    """Run experiments (or all) at a scale and write their pages; 0, or the exit code of the first run that failed.

    One seed of everything is run before the second, and what is finished anywhere under ``out`` is not run again.
    Without ``run`` only the pages are written, from the runs that are finished. ``confirm`` asks before it starts, if
    there is something left to run, and refuses where there is no terminal to ask at.
    """
    jobs = make_jobs(names, scale, out, tasks)
    published = Shelf(published=pages / RUNS) if pages is not None else Shelf()
    for job in jobs:
        if not run or not job.timed:  # seconds of another machine, or of another hour, are for looking at only
            borrow(job, Shelf(out), published)
    code = 0
    if run:
        check_data(jobs)
        if not quiet:
            announce(jobs, parallel=parallel, device=device)
        if confirm and (pending := sum(len(job.pending) for job in jobs)):
            _ask(scale, pending)
        for seed in sorted({row.seed for job in jobs for row in job.pending}):
            for job in jobs:
                if not job.timed:
                    borrow(job, Shelf(out))
                rows = [row for row in job.pending if row.seed == seed]
                if rows:
                    code = _failures(job, run_job(job, rows, parallel=parallel, device=device, quiet=quiet)) or code
                    write_pages(job, pages)
    for job in jobs:
        page = write_pages(job, pages)
        if not quiet:
            drawn = f" (figures as {', '.join(FORMATS)} beside it)" if (job.out / "figures").exists() else ""
            print(f"{job.name}: {page}{drawn}", flush=True)
    return code


def _ask(scale: Scale, pending: int) -> None:
    import typer

    if not (sys.stdin.isatty() and sys.stdout.isatty()):  # a script, a log: weeks of work are not begun by mistake
        raise UserError(f"--scale {scale}: {pending} runs are left, and there is no terminal to ask at; add --yes")
    typer.confirm("Start?", abort=True, default=True)


def _failures(job: Job, outcomes: Sequence[Outcome]) -> int:
    """Say how many runs failed and why the first did; its exit code, or 0."""
    failed = [one for one in outcomes if one.status == "failed"]
    if not failed:
        return 0
    first = f"{failed[0].cell.name}: {failed[0].message}"
    words = f"{len(failed)} of {len(outcomes)} runs failed; the first: {first}"
    print(f"fedhyper: {job.name}: {words}", file=sys.stderr)
    return failed[0].exit_code or 1
