"""What ``--pages`` writes: a page with every scale that is known, the runs it is made of, the index, README's table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.publishing.lending import Shelf
from fedhyper.lab.paper.publishing.pages import LOST, index, markdown
from fedhyper.lab.paper.publishing.readme import write_claims
from fedhyper.lab.paper.publishing.runs import RUNS, publish
from fedhyper.lab.paper.publishing.verdicts import SHRUNK, Part
from fedhyper.lab.paper.results import Results
from fedhyper.lab.paper.variants import SCALES
from fedhyper.lab.running.directory import read_config
from fedhyper.storage.files import disk_errors, read_json, write_new


def publish_part(name: str, record: Part, figures: Path, pages: Path) -> None:
    """Put one scale's part and figures beside what is known of other scales, then write the pages again."""
    folder = pages / name / record["scale"]
    with disk_errors(pages):
        shutil.rmtree(folder, ignore_errors=True)  # figures of an older plan
        folder.mkdir(parents=True)
        for stem, _ in record["figures"]:
            shutil.copyfile(figures / f"{stem}.svg", folder / f"{stem}.svg")
    write_new(folder / "part.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    known = {one: published_parts(pages, one) for one in EXPERIMENTS}
    folders = [f"{name}/{one['scale']}" for one in known[name]]
    old = read_json(pages / SHRUNK / name / "verdicts.json")
    write_new(pages / f"{name}.md", markdown(name, known[name], folders, old))
    write_new(pages / "README.md", index({one: parts for one, parts in known.items() if parts}))
    write_claims(pages.parent.parent / "README.md", known)


def publish_runs(results: Results, pages: Path, *, timed: bool) -> None:
    """Keep the runs that a page is made of beside it; timings always anew, others unless they are there."""
    shelf = Shelf(published=pages / RUNS if results.items else None)
    for one in results.items:
        config = read_config(one.run.path)
        if config is not None and (timed or shelf.find(config) is None):
            publish(one.run.path, pages / RUNS)


def published_parts(pages: Path, name: str) -> list[Part]:
    """What is published of an experiment, the paper's own scale first, with what was published of runs now gone."""
    found = []
    for scale in reversed(SCALES):
        part, lost = (read_json(at / name / scale / "part.json") for at in (pages, pages / LOST))
        if part is not None:
            found.append(part | ({"lost": lost} if lost else {}))
    return found
