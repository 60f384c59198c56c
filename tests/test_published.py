"""Published runs and pages: a file is the whole run, a damaged one is refused, and every page can be made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedhyper.errors import CheckpointRefused, StorageError, UserError
from fedhyper.lab.cli import main
from fedhyper.lab.config.model import make_config
from fedhyper.lab.paper import figures
from fedhyper.lab.paper import reproduce as reproducing
from fedhyper.lab.paper.claims import CLAIMS
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.planning import Planned
from fedhyper.lab.paper.publishing.lending import Shelf
from fedhyper.lab.paper.publishing.readme import CLAIMS_IN_WORDS, claims_block
from fedhyper.lab.paper.publishing.runs import FILES, publish, read_published
from fedhyper.lab.paper.publishing.verdicts import first_updates_of, lost_tasks
from fedhyper.lab.paper.publishing.write import published_parts
from fedhyper.lab.paper.reproduce import make_jobs, reproduce
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.running.rule import follows_rule, rule
from fedhyper.lab.sweep.grid import Cell
from tests.fake_runs import write_run

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "results"


def made(path: Path, **settings: Any) -> Path:
    """A finished run of 50 rounds, evaluated in every second; its first round has a key that the others lack."""
    run = write_run(path, eval_every=2, **settings)
    first, *others = (run / "metrics.jsonl").read_text().splitlines()
    lines = [json.dumps(json.loads(first) | {"start_trials": 7}), *others]
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


def planned(path: Path, **changes: Any) -> Planned:
    config = read_config(path)
    assert config is not None
    return Planned(Cell("cell", config.model_copy(update=changes)), config.task, "fedavg", "", config.seed, False)


# --- one file a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedhyper-g+cl"])
def test_a_published_run_is_the_run(tmp_path: Path, method: str) -> None:
    run = made(tmp_path / "run", method=method, rejected=True)
    file = publish(run, tmp_path / "runs")
    assert file.name.startswith(f"fmnist-{method}-seed0-")
    assert file.stat().st_size < 20_000, "a hundred runs of 50 rounds have to be under 2 MB"
    back = tmp_path / "back"
    back.mkdir()
    for name, content in read_published(file).items():
        (back / name).write_bytes(content)
    assert {path.name for path in back.iterdir()} == set(FILES)
    before, after = (load_runs([path])[0] for path in (run, back))
    assert (after.rounds, after.summary, after.env) == (before.rounds, before.summary, before.env)
    assert after.rounds[0]["start_trials"] == 7
    assert "start_trials" not in after.rounds[1]
    assert planned(back).cell.config.values() == planned(run).cell.config.values()
    assert after.problems == []


def damage(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        content = json.loads(text)
        return json.dumps(change(content) or content)

    return changed


@pytest.mark.parametrize(
    "damaged",
    [
        lambda text: text.replace('"accuracy": [null, 0.', '"accuracy": [null, 0.9', 1),
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        damage(lambda content: content.pop("env") and None),
        damage(lambda content: content["config"].update(seed=1)),
        damage(lambda content: content["each"]["accuracy"].pop() and None),
        damage(lambda content: content.update(sha256=7)),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path: Path, damaged: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = publish(made(tmp_path / "run"), tmp_path / "pages" / "runs")
    text = damaged(file.read_text())
    assert text != file.read_text()
    file.write_text(text)
    with pytest.raises(StorageError, match="restore it, or delete it to run it again"):
        read_published(file)
    command = ["reproduce", "fig-g", "--no-run", "--out", str(tmp_path / "out"), "--pages", str(tmp_path / "pages")]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == StorageError.exit_code
    said = capsys.readouterr().err.strip()
    assert file.name in said
    assert "\n" not in said


def test_a_longer_run_takes_the_place_of_a_shorter_one(tmp_path: Path) -> None:
    short, long = made(tmp_path / "short", rounds=10), made(tmp_path / "long", rounds=50)
    other = made(tmp_path / "other", rounds=10, local_lr=0.1)
    files = [publish(run, tmp_path / "runs") for run in (short, other, long)]
    assert files[0] == files[2] != files[1]
    assert Shelf(published=tmp_path / "runs").find(planned(long).cell.config) == files[2]


def test_a_published_run_is_lent_and_so_are_its_first_rounds(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    publish(run, tmp_path / "runs")
    shelf = Shelf(published=tmp_path / "runs")
    assert shelf.lend(planned(run), tmp_path / "out" / "whole")
    assert shelf.lend(planned(run, rounds=20), tmp_path / "out" / "first")
    assert not shelf.lend(planned(run, rounds=60), tmp_path / "out" / "more")
    assert not shelf.lend(planned(run, seed=1), tmp_path / "out" / "another")
    whole, first = (load_runs([tmp_path / "out" / name])[0] for name in ("whole", "first"))
    assert whole.rounds == load_runs([run])[0].rounds
    assert (first.rounds, first.config["rounds"]) == (whole.rounds[:20], 20)
    assert (first.summary or {})["cut_from_rounds"] == 50


def test_a_run_that_is_not_over_lends_the_rounds_it_has(tmp_path: Path) -> None:
    run = made(tmp_path / "pool" / "run")
    whole = load_runs([run])[0].rounds
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text("".join(text.splitlines(keepends=True)[:30]) + '{"round": 31, "accu')
    (run / "summary.json").write_text('{"status": "running"}')
    shelf = Shelf(tmp_path / "pool")
    assert shelf.lend(planned(run, rounds=20), tmp_path / "first")
    assert load_runs([tmp_path / "first"])[0].rounds == whole[:20]
    assert [shelf.find(planned(run, rounds=t).cell.config) for t in (31, 49, 50)] == [None] * 3
    (run / "metrics.jsonl").write_text(text)
    assert Shelf(tmp_path / "pool").find(planned(run).cell.config) is None, "nobody said that it is over"


def test_runs_of_another_rule_are_not_lent(tmp_path: Path) -> None:
    """A changed learning-rate-free rule makes other runs of the same config; nobody else's runs change with it."""
    assert [follows_rule(name) for name in ("fedhyper", "fedhyper+adam", "fedhyper-g", "fedavg")] == [1, 1, 0, 0]
    mine, theirs = made(tmp_path / "auto", method="fedhyper"), made(tmp_path / "fedavg")
    for run in (mine, theirs):
        publish(run, tmp_path / "runs")
    shelf = Shelf(published=tmp_path / "runs")
    assert shelf.find(planned(theirs).cell.config) is not None
    assert shelf.find(planned(mine).cell.config) is None
    env = json.loads((mine / "env.json").read_text())
    (mine / "env.json").write_text(json.dumps(env | {"rule": rule()}))
    publish(mine, tmp_path / "runs")
    assert Shelf(published=tmp_path / "runs").find(planned(mine).cell.config) is not None
    summary = json.loads((mine / "summary.json").read_text())
    (mine / "summary.json").write_text(json.dumps(summary | {"begun_with_rounds": 3}))
    publish(mine, tmp_path / "runs")
    assert Shelf(published=tmp_path / "runs").find(planned(mine).cell.config) is None, "it was extended"


def test_a_run_of_another_rule_in_the_way_is_named(tmp_path: Path) -> None:
    job = make_jobs(["fig-compose"], "smoke", tmp_path)[0]
    row = next(row for row in job.planned if row.variant == "auto")
    settings = row.cell.config.values()
    write_run(job.out / "cells" / row.cell.name, **{k: v for k, v in settings.items() if v != {}})
    with pytest.raises(CheckpointRefused, match="another version of the learning-rate-free rule; delete it"):
        reproduce(["fig-compose"], "smoke", tmp_path, run=False, quiet=True)


def test_a_run_that_is_none_cannot_be_published(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run"):
        publish(tmp_path / "empty", tmp_path / "runs")


# --- the pages of this repository --------------------------------------------------------------------------------


def drawn_as_published() -> bool:
    """Whether figures are drawn by the versions that drew the published ones; others place a label elsewhere."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    return all(version(name) == pinned[name] for name in ("altair", "vl-convert-python"))


def test_every_published_page_is_made_again_from_the_published_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte: pages, parts, figures, index, README's table. So nothing there was written by hand."""
    monkeypatch.setattr(figures, "FORMATS", ("svg",))  # the rest is not published, and takes a minute
    monkeypatch.setattr(reproducing, "write_report", lambda *_, **__: None)
    pages = tmp_path / "docs" / "results"
    shutil.copytree(PAGES, pages)
    shutil.copyfile(ROOT / "README.md", tmp_path / "README.md")
    for scale in ("paper", "small"):
        assert reproduce(["all"], scale, tmp_path / "out", pages=pages, run=False, quiet=True) == 0
    again = {path.relative_to(pages) for path in pages.rglob("*") if path.is_file()}
    assert again == {path.relative_to(PAGES) for path in PAGES.rglob("*") if path.is_file()}
    same = sorted(name for name in again if name.suffix != ".svg" or drawn_as_published())
    differ = [str(name) for name in same if (pages / name).read_bytes() != (PAGES / name).read_bytes()]
    cure = "fedhyper reproduce all --scale paper --no-run --pages docs/results; the same with --scale small"
    assert differ == [], f"run {cure}"
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text(), f"run {cure}"


def test_published_runs_are_small_and_all_are_of_the_paper() -> None:
    files = list((PAGES / "runs").glob("*.json"))
    assert sum(file.stat().st_size for file in files) < 20_000 * max(len(files), 1)
    for file in files:
        config = make_config(json.loads(file.read_text())["config"], file.name)
        assert (config.clients, config.norm_cap) == (100, 0.0)


def test_what_is_there_again_is_not_kept_as_lost() -> None:
    covered = []
    for file in sorted((PAGES / "lost").glob("*/*/part.json")):
        parts = {part["scale"]: part for part in published_parts(PAGES, file.parent.parent.name)}
        shown = lost_tasks(parts[file.parent.name])
        covered += [f"{file.parent}: {task}" for task in json.loads(file.read_text())["methods"] if task not in shown]
    assert covered == [], "these runs have been made again; take their tables and figures out of docs/results/lost"


def test_first_updates_at_small_are_within_a_factor_of_two_of_the_papers() -> None:
    """Where both scales have runs. Local work decides how long an update is, and with that whether G does anything."""
    found = {}
    for name in EXPERIMENTS:
        parts = {part["scale"]: first_updates_of(part) for part in published_parts(PAGES, name)}
        if "paper" in parts and "small" in parts:
            paper, small = parts["paper"], parts["small"]
            found |= {(name, task): small[task] / paper[task] for task in paper.keys() & small.keys()}
    assert ("fig-g", "mnist") in found
    assert {key: ratio for key, ratio in found.items() if not 0.5 <= ratio <= 2} == {}


# --- README's table ----------------------------------------------------------------------------------------------


def test_readme_names_claims_that_are_judged() -> None:
    for name, text, _ in CLAIMS_IN_WORDS:
        assert text in {claim.text for claim in CLAIMS[name] if claim.task == "mnist"}, (name, text)


def test_readme_tells_yes_no_cannot_tell_and_what_is_missing() -> None:
    def verdict(name: str, text: str, status: str, unsure: bool = False) -> dict[str, Any]:
        return {
            "text": text,
            "task": "mnist",
            "ours": f"{name} {status}",
            "status": status,
            "why": "",
            "unsure": unsure,
        }

    missing = ["mnist: FedAdam (seed 0); FedExP (seeds 0, 1); FedAvg (seeds 1, 2)", "fmnist: all 7 runs"]

    def part(name: str, *verdicts: dict[str, Any], lost: Any = None) -> dict[str, Any]:
        return {"verdicts": verdicts, "missing": missing, "lost": lost}

    times, early, best = (text for name, text, _ in CLAIMS_IN_WORDS if name == "fig-g")
    before = {"verdicts": [verdict("before", best, "reproduced")], "methods": {}}
    text = claims_block(
        {
            "fig-g": part(
                "fig-g",
                verdict("G", times, "reproduced"),
                verdict("G", early, "not reproduced", unsure=True),
                verdict("G", best, "not tested here"),
                lost=before,
            )
        }
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert [row[2] for row in rows[2:6]] == ["yes", "cannot tell", "yes", "–"]
    assert rows[4][1].startswith("before reproduced † (")
    assert rows[5][1].startswith("its runs are missing")
    assert "**Missing on MNIST**, seed 0: FedAdam, FedExP, all of fig-curve" in text
    assert "more seeds: FedExP, FedAvg." in text
    assert "fmnist" not in text
