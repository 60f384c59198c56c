"""The benchmark of robustness: its search finds the best rival, its file and its page say what was run."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.robustness import known_sst2, liars
from benchmarks.robustness.axes import AXES, CHANGES
from benchmarks.robustness.judging import judge, wanted
from benchmarks.robustness.oracle import Rival, grid, rate, rung_of, search, tried
from benchmarks.robustness.runs import Entry, Want
from benchmarks.robustness.settings import DIGITS, Axis, Setting
from benchmarks.robustness.store import Store
from fedhyper import Auto
from fedhyper.errors import UserError
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.running.rule import rule
from fedhyper.plan import Seen
from fedhyper.settings import settings_of
from fedhyper.sim.registry import METHODS, MODELS, TASKS, MethodEntry

ROOT = Path(__file__).parents[1]


# --- the search ---------------------------------------------------------------------------------------------------


def surface(rival: Rival) -> float:
    """One peak: FedAvg at 1 × 1 without decay, FedAvgM at 0.03 × 3, falling to a tenth, which is the best of all."""
    at, top, other = (0, 90.0, 0) if rival.method == "fedavg" else (-2, 95.0, 1)
    local, glob = (round(2 * math.log10(one)) for one in (rival.local_lr, rival.global_lr))  # rungs: 0.3 is -1, 3 is 1
    decay = {1: 0.0, 3: 0.5, 10: 1.0}[rival.decay] * (1 if rival.method == "fedavgm" else -1)
    return top - 5 * abs(local + glob - at) - 2 * abs(glob - other) + decay


def run_search(score: Callable[[Rival], float], middle: float, least: int) -> tuple[dict[Rival, float], int]:
    known: dict[Rival, float] = {}
    stages = 0
    while wants := search(known.get, middle, least):
        assert not set(wants) & set(known), "nothing is run twice"
        known |= {rival: score(rival) for rival in wants}
        stages += 1
    return known, stages


@pytest.mark.parametrize("middle", [0.001, 0.1, 10.0])
def test_the_search_finds_what_the_whole_grid_has(middle: float) -> None:
    known, _ = run_search(surface, middle, least=4)
    best = tried(known.get, middle, least=4)[0]
    assert best == Rival("fedavgm", 0.03, 3.0, 10)
    assert surface(best) == max(surface(rival) for rival in grid(0.1))


def test_the_search_is_a_fraction_of_the_grid_and_tries_what_the_issue_asks_for() -> None:
    known, stages = run_search(surface, 0.1, least=6)
    assert len(known) < len(grid(0.1)) / 3
    assert stages < 8
    for method in ("fedavg", "fedavgm"):
        mine = [rival for rival in known if rival.method == method]
        assert len({rival.local_lr for rival in mine if rival.global_lr == 1 and rival.decay == 1}) >= 6
        assert {rival.global_lr for rival in mine} == {0.3, 1.0, 3.0}
        assert {rival.decay for rival in mine} == {1, 3, 10}


def test_rates_are_those_that_people_write() -> None:
    assert [rate(rung) for rung in range(-3, 3)] == [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert [rung_of(rate(rung)) for rung in range(-10, 5)] == list(range(-10, 5))


# --- the tables ---------------------------------------------------------------------------------------------------


def test_every_row_is_a_config_and_no_two_settings_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    # for this test alone: other tests of this process list every method
    entry = MethodEntry("fedhyper among clients that lie about their loss", liars.fedhyper_liars)
    monkeypatch.setitem(METHODS._entries, "fedhyper-liars", (entry, __name__))
    if known_sst2.missing():  # MiniLM is not part of our environment; Shakespeare stands for its task and model
        monkeypatch.setitem(TASKS._entries, "sst2", (TASKS.get("shakespeare"), __name__))
        monkeypatch.setitem(MODELS._entries, "minilm-lora", (MODELS.get("lstm"), __name__))
    liars_known = {row.method for axis in AXES.values() for row in axis.rows} - {"fedhyper"}
    assert liars_known == {"fedhyper-liars"}
    folders: dict[str, str] = {}
    for axis in AXES.values():
        for row in axis.rows:
            options = tuple(row.options.items())
            cell = Want(row, (row.method, 1e-3, options), 20).cell
            assert cell.config.max_bad_rounds == cell.config.rounds
            folder = cell.name.partition("/")[0]
            assert folders.setdefault(folder, row.key) == row.key


def test_a_row_says_what_it_lacks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert known_sst2.missing() == "sst2 needs MiniLM: pip install -r examples/finetune/requirements.txt"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert known_sst2.missing() == f"no data: sst2; put its files into {tmp_path / 'sst2'}"
    (tmp_path / "sst2").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "sst2" / name).write_text("good\t1\n")
    assert known_sst2.missing() is None


def test_the_constants_are_all_of_autos_settings() -> None:
    changed = {name for options in CHANGES.values() for name in options}
    assert changed == settings_of(Auto).keys() - {"local_lr", "global_lr"}
    for options in CHANGES.values():
        [(name, value)] = options.items()
        assert settings_of(Auto)[name].accepts(value)
        assert value != getattr(Auto(), name)


ROW = Setting("digits, 12 rounds", DIGITS | {"rounds": 12}, ours=(20, 21, 22, 23))
AXIS = Axis("an axis", "a target", (ROW,), worst=3.0, late=2)


def filled(store: Store, ours: tuple[float, ...], late: int = 5) -> Store:
    while wants := wanted(ROW, store):
        for want in wants:
            if isinstance(want.who, Rival):
                entry = Entry(surface(want.who), 1.0, "abc", ((4, 80.0), (6, 95.0)))
            else:
                entry = Entry(ours[want.seed - 20], 2.0, "abc", ((late, 95.0),), (0.1, 0.2))
            store.put(want, entry)
    return store


@pytest.mark.parametrize(
    ("ours", "late", "misses"),
    [
        ((96.0, 96.0, 96.0, 96.0), 5, ()),
        ((95.1, 95.1, 95.1, 95.1), 5, ()),  # 0.9 under 96
        ((94.0, 94.0, 94.0, 94.0), 5, ("2.00 under",)),
        ((97.0, 97.0, 97.0, 92.0), 5, ("one run 4.00 under",)),
        ((96.0, 96.0, 96.0, 96.0), 9, ("3 rounds late",)),
    ],
)
def test_a_row_says_which_target_it_misses(
    ours: tuple[float, ...], late: int, misses: tuple[str, ...], tmp_path: Path
) -> None:
    row = judge(AXIS, ROW, filled(Store(tmp_path / "store.json"), ours, late))
    assert row is not None
    assert row.rival == "FedAvgM 0.03 × 3, falling to 1/10"
    assert row.theirs == (96.0, 96.0, 96.0)
    assert row.misses == misses


def test_a_row_with_a_missing_run_has_no_verdict(tmp_path: Path) -> None:
    assert judge(AXIS, ROW, Store(tmp_path / "store.json")) is None


def test_the_file_keeps_rivals_and_drops_runs_of_another_rule(tmp_path: Path) -> None:
    store = filled(Store(tmp_path / "store.json"), (96.0, 96.0, 96.0, 96.0))
    store.cells[ROW.key]["fedhyper@000000 0.001 seed 20"] = Entry(1.0, 1.0, "abc")
    store.save()
    text = (tmp_path / "store.json").read_text()
    assert f"@{rule()} " in text
    assert "@000000" not in text
    again = Store(tmp_path / "store.json")
    assert wanted(ROW, again) == [], "a run that is in the file is not run again"
    assert judge(AXIS, ROW, again) == judge(AXIS, ROW, store)
    again.save()
    assert (tmp_path / "store.json").read_text() == text


def test_two_processes_do_not_lose_each_others_runs(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "store.json"), Store(tmp_path / "store.json")
    one.put(Want(ROW, Rival("fedavg", 0.1), 20), Entry(90.0, 1.0, "abc"))
    other.put(Want(ROW, Rival("fedavg", 0.3), 20), Entry(91.0, 1.0, "abc"))
    one.save()
    other.save()
    assert len(Store(tmp_path / "store.json").cells[ROW.key]) == 2


def test_a_broken_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"a": {"b": {"scores": 3}}}')
    with pytest.raises(UserError, match="restore or remove it"):
        Store(tmp_path / "store.json")


# --- the liars ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "losses"),
    [
        ("times 3", (3.0, 6.0, 3.0)),
        ("1e9", (1e9, 1e9, 3.0)),
        ("-1e9", (-1e9, -1e9, 3.0)),
        ("absent", (3.0,)),
    ],
)
def test_liars_replace_their_own_losses_and_nobody_elses(lie: str, losses: tuple[float, ...]) -> None:
    seen = Seen(1.0, losses=(1.0, 2.0, 3.0), votes=((1, 0.5), (2, 0.5), (3, 0.5)))
    told = liars.Lie(lie=lie, liars=2).told(seen)
    assert told.losses == losses
    assert told.votes is not None
    assert told.votes[-1] == (3, 0.5)
    assert len(told.votes) == (3 if lie == "times 3" else 1)


def test_one_lie_is_told_in_one_round() -> None:
    def rates(story: liars.Lie) -> list[float]:
        plan = liars.Deceived(story=story)
        state, found = plan.init(), []
        for t in range(20):
            votes = ((-2, 0.1),) * 10 if t == 0 else None
            state = plan.update(state, Seen(1.0, 1.0, (1.0,) * 10, votes=votes, climbed=True))
            found.append(len([x for x in state.memory.damage.heard if x == 1e9]))
        return found

    assert rates(liars.Lie(lie="1e9", once=True)) == [1 if t == liars.WHEN else 0 for t in range(20)]
    assert rates(liars.Lie(lie="1e9")) == [1] * 20


# --- the command --------------------------------------------------------------------------------------------------


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.robustness", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("robustness")
    command("--smoke", "--out", str(out))
    return out / "smoke"


def test_the_smoke_test_fills_its_tables(smoke: Path) -> None:
    text = (smoke / "robustness.md").read_text(encoding="utf-8")
    assert "| digits, 4 rounds | " in text
    assert "not run" not in text.partition("## Smoke")[2].partition("## How")[0]
    assert "## Missing\n\nNothing." in text


def test_every_start_is_the_same_run(smoke: Path) -> None:
    """Of a rule that reads no initial rate, one start stands for {1e-6, 1e-3, 1, 100}."""
    runs = [run for run in load_runs([smoke]) if run.method == "fedhyper" and run.config["local_lr"] in (1e-6, 100.0)]
    assert len(runs) == 2
    assert len({run.summary["weights_sha256"] for run in runs if run.summary}) == 1


def test_the_report_can_show_its_runs(smoke: Path) -> None:
    runs = load_runs([smoke])
    assert {run.method for run in runs} >= {"fedavg", "fedavgm", "decay-sl", "fedhyper", "fedhyper-liars"}
    assert all(run.status == "finished" for run in runs)


def test_nothing_is_run_twice(smoke: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in smoke.rglob("metrics.jsonl")}
    text = (smoke / "robustness.md").read_text(encoding="utf-8")
    command("--smoke", "--out", str(smoke.parent))
    assert {path: path.stat().st_mtime_ns for path in smoke.rglob("metrics.jsonl")} == before
    assert (smoke / "robustness.md").read_text(encoding="utf-8") == text


def test_the_plan_says_what_it_costs() -> None:
    plan = command("skew", "liars", "--tasks", "digits", "--list").splitlines()
    assert plan[-1].startswith("together about ")
    assert any(line.startswith("skew ") and "5 rows" in line for line in plan)
    assert all(line.endswith("next: nothing") for line in plan[:-1])  # every row that is published is run
