"""The paper, reproduced: ``fedhyper reproduce ID`` runs an experiment as a sweep, then writes figures, table, page.

    DIR/<id>/<scale>/cells/...      the runs; finished ones are kept, broken ones continued
    DIR/<id>/<scale>/figures/...    PNG, SVG and PDF
    DIR/<id>/<scale>/page.md table.csv verdicts.json report-<task>.html

All state is in the runs: the same command goes on where the last one stopped, whatever stopped it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedhyper.errors import UserError, did_you_mean, printable
from fedhyper.lab.config.model import dump
from fedhyper.lab.paper.claims import verdicts
from fedhyper.lab.paper.cost import estimate
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.figures import draw
from fedhyper.lab.paper.pages import index, markdown, table_csv
from fedhyper.lab.paper.planning import Planned, planned_runs
from fedhyper.lab.paper.results import Result, Results
from fedhyper.lab.paper.variants import Scale
from fedhyper.lab.results.report import FORMATS, write_report
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.running.words import duration
from fedhyper.lab.sweep.display import make_sweep_display
from fedhyper.lab.sweep.run import Outcome, ended_before, run_sweep
from fedhyper.storage.files import disk_errors, read_json, write_new

IDS = (*EXPERIMENTS, "all")
# What makes a finished run complete for a reader; the rest is for continuing it.
_KEPT = ("config.toml", "metrics.jsonl", "summary.json", "env.json", "partition.json")


@dataclass(frozen=True)
class Job:
    """One experiment at one scale in its directory."""

    name: str
    scale: Scale
    out: Path
    planned: list[Planned]

    @property
    def pending(self) -> list[Planned]:
        """The runs that have not come to their end."""
        return [row for row in self.planned if ended_before(row.cell, self.out) is None]


def make_jobs(name: str, scale: Scale, out: Path) -> list[Job]:
    """The experiments that ``name`` stands for; a name nobody knows is refused with the nearest one."""
    if name not in IDS:
        raise UserError(f"there is no experiment '{printable(name)}'; {did_you_mean(name, IDS)}")
    chosen = list(EXPERIMENTS) if name == "all" else [name]
    return [Job(one, scale, out / one / scale, planned_runs(one, scale)) for one in chosen]


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse before anything starts when a dataset is not there, with the data layer's own words."""
    from fedhyper.sim.data.files import dataset_status, load_files

    for task in dict.fromkeys(row.task for job in jobs for row in job.planned if row.task != "digits"):
        if dataset_status([task], check=False)[0].state == "missing":
            load_files(task)


def announce(jobs: Sequence[Job], *, parallel: int | None, device: str) -> None:
    """Print what will be run, how long it takes about, and how much disk it needs."""
    seen: set[str] = set()
    seconds, disk = 0.0, 0
    for job in jobs:
        timed = EXPERIMENTS[job.name].timed
        new = [row.cell.config for row in job.pending if timed or dump(row.cell.config) not in seen]
        seen |= {dump(config) for config in new}
        cost = estimate(new, jobs=1 if timed else parallel, device=device)
        seconds, disk = seconds + cost.seconds, disk + cost.disk
        print(
            f"{job.name} ({job.scale}): {len(job.planned)} runs, {cost.runs} of them to do, "
            f"about {duration(cost.seconds)} and {cost.disk / 1e6:,.0f} MB",
            flush=True,
        )
    if len(jobs) > 1:
        print(f"together about {duration(seconds)} and {disk / 1e6:,.0f} MB", flush=True)


def run_job(job: Job, *, root: Path, parallel: int | None, device: str, quiet: bool) -> list[Outcome]:
    """Run what is not there yet; how each run ended comes back."""
    timed = EXPERIMENTS[job.name].timed
    if not timed:
        borrow(job, root)
    return run_sweep(
        [row.cell for row in job.planned],
        job.out,
        description={"experiment": job.name, "scale": job.scale},
        jobs=1 if timed else parallel,
        device=device,
        display=make_sweep_display(quiet=quiet),
    )


def borrow(job: Job, root: Path) -> int:
    """Copy finished runs of other experiments under ``root`` that have the very same config; how many there were."""
    count = 0
    for row in job.pending:
        target = job.out / "cells" / row.cell.name
        for source in sorted(root.glob(f"*/{job.scale}/cells/{row.cell.name}")):
            if source == target or target.exists() or not _is_finished_copy(source, row):
                continue
            with disk_errors(target):
                part = target.parent / f".{target.name[:200]}.tmp"
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                for name in _KEPT:
                    shutil.copyfile(source / name, part / name)
                part.rename(target)
            count += 1
    return count


def _is_finished_copy(source: Path, row: Planned) -> bool:
    known, summary = read_config(source), read_json(source / "summary.json")
    return (
        known is not None
        and known.values() == row.cell.config.values()
        and (summary or {}).get("status") in ("finished", "diverged")
        and all((source / name).is_file() for name in _KEPT)
    )


def gather(job: Job) -> Results:
    """What the finished runs of an experiment measured."""
    done = [row for row in job.planned if ended_before(row.cell, job.out) is not None]
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
    figures = draw(job.name, job.planned, results, job.out / "figures")
    text = markdown(job.name, job.scale, job.planned, results, judged, figures, "figures")
    page = {
        "title": EXPERIMENTS[job.name].title,
        "scale": job.scale,
        "done": len(results.items),
        "planned": len(job.planned),
        "verdicts": [asdict(verdict) for verdict in judged],
    }
    write_new(job.out / "table.csv", table_csv(job.planned, results))
    write_new(job.out / "verdicts.json", json.dumps(page, indent=1, ensure_ascii=False) + "\n")
    for task in dict.fromkeys(one.task for one in results.items):
        paths = [one.run.path for one in results.items if one.task == task]
        write_report(paths, job.out / f"report-{task}.html", title=f"{job.name}, {task}, {job.scale}")
    if pages is not None:
        _publish(job, pages, page, text.replace("](figures/", f"]({job.name}/"), figures)
    return write_new(job.out / "page.md", text)


def _publish(job: Job, pages: Path, page: dict[str, Any], text: str, figures: Sequence[tuple[str, str]]) -> None:
    with disk_errors(pages):
        (pages / job.name).mkdir(parents=True, exist_ok=True)
        for stem, _ in figures:
            shutil.copyfile(job.out / "figures" / f"{stem}.svg", pages / job.name / f"{stem}.svg")
    write_new(pages / job.name / "verdicts.json", json.dumps(page, indent=1, ensure_ascii=False) + "\n")
    write_new(pages / f"{job.name}.md", text)
    known = {name: read_json(pages / name / "verdicts.json") for name in EXPERIMENTS}
    write_new(pages / "README.md", index({name: one for name, one in known.items() if one is not None}))


def reproduce(
    name: str,
    scale: Scale,
    out: Path,
    *,
    parallel: int | None = None,
    device: str = "cpu",
    pages: Path | None = None,
    run: bool = True,
    confirm: bool = False,
    quiet: bool = False,
) -> int:
    """Run an experiment (or all) at a scale and write its pages; 0, or the exit code of the first run that failed.

    Without ``run`` only the pages are written, from the runs that are finished. ``confirm`` asks before it starts.
    """
    jobs = make_jobs(name, scale, out)
    if run:
        check_data(jobs)
        if not quiet:
            announce(jobs, parallel=parallel, device=device)
        if confirm and any(job.pending for job in jobs):
            import typer

            typer.confirm("Start?", abort=True, default=True)
    code = 0
    for job in jobs:
        outcomes = run_job(job, root=out, parallel=parallel, device=device, quiet=quiet) if run else []
        failed = [one for one in outcomes if one.status == "failed"]
        if failed:
            code = code or failed[0].exit_code or 1
            first = f"{failed[0].cell.name}: {failed[0].message}"
            print(
                f"fedhyper: {job.name}: {len(failed)} of {len(outcomes)} runs failed; the first: {first}",
                file=sys.stderr,
            )
        page = write_pages(job, pages)
        if not quiet:
            print(f"{job.name}: {page} (figures as {', '.join(FORMATS)} beside it)", flush=True)
    return code
