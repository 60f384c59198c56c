"""The paper's experiments: what is planned, how claims are judged (on made-up runs), and the command on digits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedhyper.errors import DataError, UserError
from fedhyper.lab.cli import main
from fedhyper.lab.paper.checks import accuracy as checks
from fedhyper.lab.paper.checks import grid as grid_checks
from fedhyper.lab.paper.checks import rounds as round_checks
from fedhyper.lab.paper.claims import CLAIMS, verdicts
from fedhyper.lab.paper.cost import estimate
from fedhyper.lab.paper.experiments import EXPERIMENTS
from fedhyper.lab.paper.measured import first_updates, missing, part
from fedhyper.lab.paper.planning import planned_runs, reductions
from fedhyper.lab.paper.publishing.lending import Shelf
from fedhyper.lab.paper.publishing.pages import index, markdown, table_csv
from fedhyper.lab.paper.publishing.verdicts import first_updates_of
from fedhyper.lab.paper.publishing.write import published_parts
from fedhyper.lab.paper.reproduce import IDS, Job, borrow, check_data, make_jobs, reproduce
from fedhyper.lab.paper.results import Result, Results
from fedhyper.lab.paper.variants import REPEATED, SETTINGS, Scale
from fedhyper.lab.results.stored import StoredRun, load_runs
from fedhyper.lab.running.run import run_experiment
from fedhyper.lab.sweep.grid import Cell
from fedhyper.lab.sweep.run import ended_before

SMOKE = ("fig-compose", "fig-robust", "overhead")
ROUNDS = 100


def made_up(
    task: str,
    variant: str,
    accuracy: float | Callable[[int], float],
    *,
    level: str = "",
    seed: int = 0,
    rounds: int = ROUNDS,
    **record: Any,
) -> Result:
    """A finished run with this accuracy in every round; ``record`` are further values, numbers or functions of t."""
    rows = []
    for t in range(1, rounds + 1):
        values: dict[str, Any] = {
            "accuracy": accuracy,
            "global_lr": 1.0,
            "seconds_train": 1.0,
            "seconds_aggregate": 0.0,
        }
        values |= {"bytes_up": 100, "bytes_down": 100} | record
        rows.append({"round": t} | {key: value(t) if callable(value) else value for key, value in values.items()})
    run = StoredRun("made up", Path(), {"rounds": rounds}, rows, {"status": "finished"}, {}, None)
    return Result(task, variant, level, seed, run)


# --- the runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "scale"), [(n, s) for n in EXPERIMENTS for s in EXPERIMENTS[n].scales])
def test_every_experiment_has_its_runs(name: str, scale: Scale) -> None:
    planned = planned_runs(name, scale)
    names = [row.cell.name for row in planned]
    assert len(set(names)) == len(names) > 0
    expected = {"digits"} if scale == "smoke" else {"mnist", "fmnist", "cifar10", "shakespeare"}
    assert {row.task for row in planned} <= expected
    assert {row.cell.config.task for row in planned} <= expected
    assert len({json.dumps(row.cell.config.values(), sort_keys=True) for row in planned}) == len(planned)


def test_the_scale_paper_is_the_papers_setting() -> None:
    rounds = {"mnist": 50, "fmnist": 50, "cifar10": 200, "shakespeare": 600}
    models = {"mnist": "cnn", "fmnist": "cnn", "cifar10": "resnet18", "shakespeare": "lstm"}
    for row in planned_runs("fig-g", "paper"):
        config = row.cell.config
        assert (config.rounds, config.model) == (rounds[row.task], models[row.task])
        assert (config.clients, config.clients_per_round, config.local_epochs, config.batch_size) == (100, 10, 10, 64)
        assert (config.local_lr, config.weighting, config.subset) == (0.01, "uniform", 0)
        if row.task == "shakespeare":
            assert config.partition.kind == "natural"
            assert config.model_options == {"bidirectional": True}
        else:
            assert (config.partition.kind, config.partition.concentration) == ("dirichlet", 0.5)
    at_paper = [name for name in EXPERIMENTS if "paper" in EXPERIMENTS[name].scales]
    assert all(reductions("paper", name) == [] for name in at_paper if name != "overhead")


@pytest.mark.parametrize("task", SETTINGS["paper"])
def test_small_keeps_the_local_work(task: str) -> None:
    """What decides the length of the first updates is equal; the network is where it must be smaller."""
    small, paper = SETTINGS["small"][task], SETTINGS["paper"][task]
    changed = {key for key in {*small, *paper} if small.get(key) != paper.get(key)}
    networks = {"cifar10": {"model"}, "shakespeare": {"model_options.hidden", "model_options.layers"}}
    assert changed == {"rounds"} | networks.get(task, set())
    assert small["rounds"] < paper["rounds"]


def test_first_update_at_small_is_the_papers(tmp_path: Path) -> None:
    if not os.environ.get("FEDHYPER_DATA"):
        pytest.skip("needs mnist; set FEDHYPER_DATA")
    row = next(r for r in planned_runs("fig-g", "small") if (r.task, r.variant) == ("mnist", "fedavg"))
    run_experiment(row.cell.config.model_copy(update={"rounds": 1, "eval_every": 10}), tmp_path / "run")
    found = first_updates(Results([Result("mnist", "fedavg", "", 0, load_runs([tmp_path / "run"])[0])]))["mnist"]
    published = first_updates_of(published_parts(Path("docs/results"), "fig-g")[0])["mnist"]
    assert found == pytest.approx(published, rel=1e-3)  # the promise is a factor of 2; equal settings give equal bits


def test_at_the_scale_paper_one_seed_of_everything_comes_first() -> None:
    rows = [row for row in planned_runs("fig-g", "paper") if row.task == "mnist"]
    assert [row.seed for row in rows] == sorted(row.seed for row in rows)
    assert {row.variant for row in rows if row.seed == 0} >= {"fedavg", "fedadagrad", "fedadam", "decay-g", "auto"}
    assert {row.variant for row in rows if row.seed == 2} == {"fedavg", "g", "fedexp"} <= set(REPEATED)
    skews = {(row.level, row.variant) for row in planned_runs("tab-noniid", "paper") if row.seed == 1}
    assert skews == {("Dirichlet 0.5", "fedavg"), ("Dirichlet 0.5", "g+cl")}, "only what other figures share"
    assert not any(row.ablation for name in ("fig-g", "fig-cl") for row in planned_runs(name, "paper"))


def test_grid_of_rates_is_the_papers() -> None:
    pairs = {
        (row.cell.config.global_lr, row.cell.config.local_lr)
        for row in planned_runs("fig-robust", "paper")
        if row.variant == "fedavg" and row.task == "cifar10"
    }
    assert pairs == {(a, b) for a in (0.5, 0.75, 1, 1.5, 2) for b in (0.001, 0.005, 0.01, 0.05, 0.1)}


def test_every_reduction_is_listed() -> None:
    lines = reductions("small", "fig-robust")
    assert [line.partition(":")[0] for line in lines] == ["cifar10", "shakespeare"]
    assert "rounds 200 → 10" in lines[0]
    assert "model resnet18 → cnn" in lines[0]
    assert "model_options.hidden 256 → 64" in lines[1]
    assert all("local" not in line and "subset" not in line for line in lines), "the work at a client is the paper's"
    assert reductions("small", "fig-g")[:2] == ["mnist: rounds 50 → 20", "fmnist: rounds 50 → 20"]


def test_both_readings_and_the_released_code_are_there() -> None:
    letters = {row.variant for name in EXPERIMENTS for row in planned_runs(name, "small") if "letter" in row.variant}
    assert letters == {"sl-letter", "cl-letter", "g+cl-letter"}
    for row in planned_runs("fig-cl", "small"):
        if row.variant == "cl-letter":
            assert row.cell.config.method_options == {"bounds": "absolute"}
    assert "fedhyper-cl-released" in {row.cell.config.method for row in planned_runs("fig-cl", "small")}


# --- claims ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scale"), [(n, s) for n in EXPERIMENTS for s in EXPERIMENTS[n].scales if s != "smoke"]
)
def test_no_claim_lacks_its_runs(name: str, scale: Scale) -> None:
    everything = Results(
        [made_up(r.task, r.variant, 0.5, level=r.level, seed=r.seed, rounds=10) for r in planned_runs(name, scale)]
    )
    for claim in CLAIMS[name]:
        assert claim.check(everything, claim.task).holds is not None, claim.text
    assert all(v.status == "not tested here" for v in verdicts(name, Results([]), scale))


def test_smoke_decides_nothing() -> None:
    everything = [made_up("digits", r.variant, 0.9, level=r.level) for r in planned_runs("fig-compose", "smoke")]
    judged = verdicts("fig-compose", Results(everything), "smoke")
    assert {v.status for v in judged} == {"not tested here"}
    assert all("digits" in v.why for v in judged)
    assert all(v.ours != "–" for v in judged), "what was measured is shown all the same"


def test_one_seed_needs_half_a_point() -> None:
    def gain(accuracy: float) -> bool | None:
        pair = [made_up("cifar10", "g+adam", accuracy), made_up("cifar10", "fedadam", 0.5)]
        return checks.above_best(Results(pair), "cifar10", ours="g+adam", rivals=("fedadam",)).holds

    assert gain(0.506) is True
    assert gain(0.504) is False
    assert gain(0.4) is False


def test_several_seeds_need_their_standard_error() -> None:
    def gain(*ours: float) -> bool | None:
        runs = [made_up("mnist", "g", value, seed=i) for i, value in enumerate(ours)]
        runs += [made_up("mnist", "fedavg", value, seed=i) for i, value in enumerate((0.90, 0.90, 0.90))]
        return checks.above_best(Results(runs), "mnist", ours="g", rivals=("fedavg",)).holds

    assert gain(0.903, 0.903, 0.903) is True  # +0.3 points, no spread
    assert gain(0.901, 0.901, 0.901) is False  # +0.1: below 0.2
    assert gain(0.85, 0.90, 0.97) is False  # +0.67, standard error 3.5


def test_methods_are_compared_on_the_seeds_that_both_have() -> None:
    runs = [made_up("mnist", "g", value, seed=i) for i, value in enumerate((0.90, 0.99, 0.99))]
    once = made_up("mnist", "fedadam", 0.94)
    found = checks.above_best(Results([*runs, once]), "mnist", ours="g", rivals=("fedadam",))
    assert found.holds is False, "seed 0 alone: 90 against 94"
    assert found.why == "-4.00 points, +0.50 needed to tell, one seed"
    thrice = [made_up("mnist", "fedavg", 0.90, seed=i) for i in range(3)]
    found = checks.above_best(Results([*runs, *thrice]), "mnist", ours="g", rivals=("fedavg",))
    assert found.holds is True
    assert found.why.endswith("3 seeds")
    apart = [made_up("mnist", "fedavg", 0.90, seed=7)]
    assert checks.above_best(Results([*runs, *apart]), "mnist", ours="g", rivals=("fedavg",)) == checks.MISSING


def test_everybody_at_its_own_best_rate() -> None:
    def own(**best: float) -> bool | None:
        runs = [made_up("mnist", v, a - 0.1 * i, level=f"β {i}") for v, a in best.items() for i in range(2)]
        return grid_checks.at_own_best(Results(runs), "mnist", ours="g", rivals=("fedavg",)).holds

    assert own(g=0.95, fedavg=0.94) is True
    assert own(g=0.95, fedavg=0.948) is False
    assert own(g=0.95) is None


def test_the_best_baseline_counts_and_none_may_be_missing() -> None:
    runs = [made_up("mnist", v, a) for v, a in (("g", 0.95), ("fedavg", 0.90), ("fedexp", 0.96))]
    assert checks.above_best(Results(runs), "mnist", ours="g", rivals=("fedavg", "fedexp")).holds is False
    assert checks.above_best(Results(runs), "mnist", ours="g", rivals=("fedavg",)).holds is True
    assert checks.above_best(Results(runs), "mnist", ours="g", rivals=("fedavg", "fedadam")).holds is None


def test_late_accuracy_is_the_mean_of_the_last_fifth() -> None:
    results = Results([made_up("mnist", "g", lambda t: 0.5 if t <= 80 else 0.7 + 0.1 * (t % 2))])
    late = results.late("mnist", "g")
    assert late is not None
    assert late.mean == pytest.approx(0.75)


def test_earlier_looks_at_the_first_rounds_only() -> None:
    fast = made_up("mnist", "g", lambda t: 0.8 if t <= 50 else 0.0)
    slow = made_up("mnist", "fedavg", lambda t: 0.7 if t <= 50 else 1.0)
    found = checks.earlier(Results([fast, slow]), "mnist", ours="g", rivals=("fedavg",), share=0.5)
    assert found.holds is True
    assert checks.earlier(Results([fast, slow]), "mnist", ours="g", rivals=("fedavg",), share=0.9).holds is False


@pytest.mark.parametrize(("ours", "holds"), [(0.495, True), (0.485, False), (0.6, True)])
def test_comparable_is_within_a_point_below(ours: float, holds: bool) -> None:
    pair = Results([made_up("cifar10", "sl", ours), made_up("cifar10", "g", 0.5)])
    assert checks.comparable(pair, "cifar10", ours="sl", rival="g").holds is holds
    assert checks.close_to(pair, "cifar10", ours="sl", rival="g").holds is (holds and ours < 0.55)


@pytest.mark.parametrize(("start", "holds"), [(60, True), (79, True), (85, False), (101, False)])
def test_sooner_needs_four_fifths_of_the_rounds(start: int, holds: bool) -> None:
    mine = made_up("shakespeare", "sl", lambda t: 0.6 if t >= min(start, 100) else 0.1)
    other = made_up("shakespeare", "g", lambda t: 0.6 if t >= 100 else 0.1)
    found = checks.sooner(Results([mine, other]), "shakespeare", ours="sl", rivals=("g",), level=0.11)
    assert found.holds is holds


@pytest.mark.parametrize(("start", "holds"), [(30, True), (90, True), (92, False), (101, False)])
def test_times_faster_compares_rounds_to_fedavgs_own_accuracy(start: int, holds: bool) -> None:
    mine = made_up("mnist", "cl", lambda t: 0.9 if t >= start else 0.1)
    fedavg = made_up("mnist", "fedavg", lambda t: 0.6 if t >= 100 else 0.1)  # 0.125 over the last fifth
    found = checks.times_faster(Results([mine, fedavg]), "mnist", ours="cl", at_least=1.1)
    assert found.holds is holds
    assert checks.times_faster(Results([mine]), "mnist", ours="cl", at_least=1.1) == checks.MISSING


def test_a_level_that_is_not_reached_is_replaced_by_one_that_is() -> None:
    runs = Results([made_up("shakespeare", "sl", 0.4), made_up("shakespeare", "g", lambda t: 0.4 * t / 100)])
    found = checks.sooner(runs, "shakespeare", ours="sl", rivals=("g",), level=0.5)
    assert found.holds is True
    assert "34." in found.ours  # 95 % of the lower late accuracy, 0.362 averaged over the last fifth


def test_order_of_three() -> None:
    def holds(*values: float) -> bool | None:
        runs = [made_up("shakespeare", v, a) for v, a in zip(("cl", "sl", "g"), values, strict=True)]
        return checks.ordered(Results(runs), "shakespeare", best_first=("cl", "sl", "g")).holds

    assert holds(0.52, 0.51, 0.50) is True
    assert holds(0.52, 0.518, 0.50) is False
    assert holds(0.50, 0.51, 0.52) is False


def grid(gain: Callable[[int], float]) -> Results:
    levels = [f"α {a:g}, β {b:g}" for a in (0.5, 1.0) for b in (0.001, 0.1)]
    runs = [made_up("shakespeare", "fedavg", 0.3, level=level) for level in levels]
    return Results(runs + [made_up("shakespeare", "g+cl", 0.3 + gain(i), level=x) for i, x in enumerate(levels)])


def test_most_cells_of_the_grid() -> None:
    assert grid_checks.most_cells(grid(lambda i: 0.02 if i < 3 else -0.05), "shakespeare").holds is True
    assert grid_checks.most_cells(grid(lambda i: 0.02 if i < 2 else 0.0), "shakespeare").holds is False
    assert grid_checks.most_cells(grid(lambda i: 0.009), "shakespeare").holds is False


def test_the_smallest_rates_gain_most() -> None:
    found = grid_checks.worst_rates(grid(lambda i: 0.15 if i == 0 else 0.0), "shakespeare")
    assert found.holds is True
    assert found.ours.startswith("+15.00 at α 0.5, β 0.001")
    assert grid_checks.worst_rates(grid(lambda i: 0.0 if i == 0 else 0.2), "shakespeare").holds is False


def test_span_of_fedavg() -> None:
    runs = [made_up("cifar10", "fedavg", a, level=str(i)) for i, a in enumerate((0.44, 0.50, 0.57))]
    assert grid_checks.fedavg_span(Results(runs), "cifar10", low=0.437, high=0.572).holds is True
    assert grid_checks.fedavg_span(Results(runs[1:]), "cifar10", low=0.437, high=0.572).holds is False
    claims = [v for v in verdicts("fig-robust", Results(runs), "small") if "FedAvg reaches" in v.text]
    assert [v.status for v in claims] == ["not tested here"], "another model: no verdict"


@pytest.mark.parametrize(
    ("curve", "rises", "two_halves"),
    [
        (lambda t: 1 + t / 15 if t <= 15 else max(0.4, 2 - (t - 15) / 30), True, True),
        (lambda t: 1.0, False, False),
        (lambda t: 1 + t / 100, False, False),
        (lambda t: 1 - t / 200, False, False),
    ],
)
def test_curve_of_the_rate(curve: Callable[[int], float], rises: bool, two_halves: bool) -> None:
    results = Results([made_up("cifar10", "g", 0.5, global_lr=curve)])
    assert round_checks.rises_then_falls(results, "cifar10").holds is rises
    assert round_checks.halves(results, "cifar10").holds is two_halves


@pytest.mark.parametrize(("curve", "holds"), [(lambda t: 1.2, True), (lambda t: 1.2 if t <= 90 else 1.8, False)])
def test_range_of_fedexp(curve: Callable[[int], float], holds: bool) -> None:
    results = Results([made_up("cifar10", "fedexp", 0.5, global_lr=curve)])
    assert round_checks.fedexp_range(results, "cifar10").holds is holds


def test_skew() -> None:
    levels = ("IID", "Dirichlet 0.75", "Dirichlet 0.5", "Dirichlet 0.25")
    runs = [made_up("mnist", "fedavg", 0.9, level=level) for level in levels]
    more = [made_up("mnist", "g+cl", 0.9 + 0.01 * i, level=level) for i, level in enumerate(levels)]
    less = [made_up("mnist", "g+cl", 0.9 - 0.01 * i, level=level) for i, level in enumerate(levels)]
    assert grid_checks.most_at_most_skewed(Results(runs + more), "mnist").holds is True
    assert grid_checks.most_at_most_skewed(Results(runs + less), "mnist").holds is False
    assert grid_checks.skew_gain(Results(runs + more), "mnist", level="Dirichlet 0.25").holds is True
    assert grid_checks.skew_gain(Results(runs + less), "mnist", level="Dirichlet 0.25").holds is False


def test_overhead() -> None:
    def results(seconds: float, down: int) -> Results:
        # the first round pays for start-up and does not count
        def spent(t: int) -> float:
            return 50.0 if t == 1 else seconds

        return Results(
            [
                made_up("fmnist", "fedavg", 0.5, rounds=2),
                made_up("fmnist", "g", 0.5, rounds=2, seconds_train=1.0),
                made_up("fmnist", "cl", 0.5, rounds=2, seconds_train=spent, bytes_down=down),
            ]
        )

    assert round_checks.negligible(results(1.0, 100), "fmnist", variant="cl").holds is True
    assert round_checks.negligible(results(1.2, 100), "fmnist", variant="cl").holds is False
    assert round_checks.negligible(results(1.0, 200), "fmnist", variant="cl").holds is False
    assert round_checks.costs_more(results(1.0, 200), "fmnist", variant="cl", than="g").holds is True
    assert round_checks.costs_more(results(1.0, 100), "fmnist", variant="cl", than="g").holds is False


# --- pages -----------------------------------------------------------------------------------------------------


def page_part(name: str, scale: Scale, results: Results) -> dict[str, Any]:
    planned = planned_runs(name, scale)
    return part(name, scale, planned, results, verdicts(name, results, scale), [("mnist-bars", "MNIST")])


def test_page_says_what_is_missing_and_how_to_go_on() -> None:
    planned = planned_runs("tab-noniid", "small")
    mnist = [made_up(r.task, r.variant, 0.8, level=r.level, seed=r.seed) for r in planned if r.task == "mnist"]
    some = Results(mnist[1:])
    text = markdown("tab-noniid", [page_part("tab-noniid", "small", some)], ["tab-noniid/small"])
    assert f"Scale small: {len(some.items)} of {len(planned)} runs are there." in text
    assert "- mnist: FedAvg, IID (seed 0)\n- fmnist: all 12 runs\n" in text
    assert (
        "fedhyper reproduce tab-noniid --scale small --tasks mnist,fmnist,cifar10 --pages docs/results` goes on" in text
    )
    assert "![MNIST](tab-noniid/small/mnist-bars.svg)" in text
    assert "98.62 / 98.92" in text
    assert "rounds 200 → 40" in text
    assert text.count("not tested here:") == 11, "five claims each on fmnist and cifar10, and one without FedAvg"
    rows = table_csv(planned, some).splitlines()
    assert rows[1].startswith("mnist,FedAvg,IID,0,")
    assert rows[-1].startswith('mnist,"FedHyper-G+CL, [1/γ, γ]",Dirichlet 0.25,1,0.8,')
    assert missing(planned, Results([])) == ["mnist: all 16 runs", "fmnist: all 12 runs", "cifar10: all 12 runs"]


def test_page_sets_scales_side_by_side_and_says_when_a_verdict_changes() -> None:
    def runs(g: float) -> Results:
        rivals = ("fedavg", "fedadagrad", "fedadam", "fedexp", "decay-g")
        values = {"g": g} | dict.fromkeys(rivals, 0.5)
        return Results([made_up("mnist", v, a, update_norm=0.6677) for v, a in values.items()])

    paper, small = page_part("fig-g", "paper", runs(0.6)), page_part("fig-g", "small", runs(0.6))
    old = page_part("fig-g", "small", runs(0.4))
    text = markdown("fig-g", [paper, small], ["a", "b"], old)
    (row,) = (line for line in text.splitlines() if line.startswith("| above the best baseline | mnist |"))
    assert row.count("**reproduced**: +10.00") == 2
    assert row.endswith("**yes**: not reproduced → reproduced |")
    assert "| mnist | 0.6677 | 0.6677 |" in text, "the length of the first update at both scales"
    unchanged = markdown("fig-g", [paper], ["a"], paper)
    assert "| no |" in unchanged
    assert "**yes**" not in unchanged
    apart = markdown("fig-g", [paper, page_part("fig-g", "small", runs(0.4))], ["a", "b"], old)
    assert "unclear: scales with the same local work differ" in apart
    assert "**yes**" not in apart, "what differs between our scales is not the local work"


def test_index_lists_every_experiment() -> None:
    page = {"title": "t", "scale": "small", "done": 3, "planned": 4}
    page |= {"verdicts": [{"text": "c", "task": "mnist", "status": "reproduced"}]}
    text = index({"fig-g": [page]})
    assert "| [fig-g](fig-g.md) | FedHyper-G against server optimizers | small | 3 of 4 | 1 | 0 | 0 |" in text
    assert text.count("not run yet") == len(EXPERIMENTS) - 1


# --- the command -----------------------------------------------------------------------------------------------


def test_unknown_id_and_missing_data_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'fig-g'"):
        make_jobs(["fig_g"], "smoke", tmp_path)
    with pytest.raises(UserError, match="choose of mnist, fmnist, cifar10, shakespeare"):
        make_jobs(["fig-g", "fig-sl"], "paper", tmp_path, ["imagenet"])
    with pytest.raises(UserError, match="own-rates has no scale paper; use --scale small"):
        make_jobs(["own-rates"], "paper", tmp_path)
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="fedhyper data fetch"):
        reproduce(["fig-compose"], "small", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    check_data(make_jobs(["all"], "smoke", tmp_path))


def test_where_nobody_can_be_asked_nothing_long_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--scale smoke: [0-9]+ runs are left, and there is no terminal.*; add --yes"):
        reproduce(["fig-compose"], "smoke", tmp_path, confirm=True, quiet=True)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as done:  # with nothing left there is nothing to ask
        done.setattr(Job, "pending", property(lambda _: []))
        done.setattr("fedhyper.lab.paper.reproduce.write_pages", lambda *_: None)
        assert reproduce(["fig-compose"], "smoke", tmp_path, confirm=True, quiet=True) == 0
    asked = {}
    monkeypatch.setattr("fedhyper.lab.paper.reproduce.reproduce", lambda *_, **how: asked.update(how) or 0)
    for options, confirm in ((["--scale", "paper"], True), (["--scale", "paper", "--yes"], False), ([], False)):
        with pytest.raises(SystemExit):
            main(["reproduce", "fig-g", *options])
        assert asked["confirm"] == confirm


def test_tasks_restrict_what_is_run_and_not_the_page(tmp_path: Path) -> None:
    jobs = make_jobs(["fig-g", "tab-noniid"], "paper", tmp_path, ["mnist"])
    assert {row.task for job in jobs for row in job.pending} == {"mnist"}
    assert {row.task for row in jobs[0].planned} == {"mnist", "fmnist", "cifar10", "shakespeare"}


def test_estimate_grows_with_the_work() -> None:
    (one, *_), twice = [row.cell.config for row in planned_runs("fig-compose", "smoke")], {"rounds": 1000}
    small, large = (estimate([c], jobs=1, device="cpu") for c in (one, one.model_copy(update=twice)))
    assert 0 < small.seconds < large.seconds
    assert small.disk == large.disk > 0
    assert estimate([], jobs=None, device="cpu").seconds == 0


def test_smoke(tmp_path: Path) -> None:
    """Three experiments as a user runs them. One test, for with two workers a shared fixture would run them twice."""
    for name in SMOKE:
        assert reproduce([name], "smoke", tmp_path / "runs", pages=tmp_path / "pages", quiet=True) == 0
        check_everything_is_written(tmp_path, name)
    check_the_same_command_goes_on(tmp_path / "runs")
    check_runs_are_shared(tmp_path / "runs")
    check_a_longer_run_lends_its_first_rounds(tmp_path / "runs", tmp_path / "cut")
    check_pages_alone(tmp_path / "runs")
    check_a_fresh_clone_starts_from_the_published_runs(tmp_path)


def check_a_fresh_clone_starts_from_the_published_runs(root: Path) -> None:
    """With the pages and their runs alone there is nothing left to do, and the pages come out as they were."""
    pages, clone = root / "pages", root / "clone"
    before = {path: path.read_bytes() for path in pages.rglob("*") if path.is_file()}
    assert len(list((pages / "runs").iterdir())) >= len(planned_runs("fig-compose", "smoke"))
    for name, run in (("fig-compose", True), ("overhead", False)):
        (job,) = make_jobs([name], "smoke", clone)
        assert reproduce([name], "smoke", clone, pages=pages, run=run, quiet=True) == 0
        assert job.pending == []
        assert not (job.out / "sweep.toml").exists(), "no run was started"
    assert {path: path.read_bytes() for path in pages.rglob("*") if path.is_file()} == before
    (timed,) = make_jobs(["overhead"], "smoke", root / "again")
    assert borrow(timed, Shelf(published=pages / "runs")) == len(timed.planned), (
        "timings are for pages; the command runs its own"
    )


def check_everything_is_written(root: Path, name: str) -> None:
    out = root / "runs" / name / "smoke"
    page = (out / "page.md").read_text()
    verdict = json.loads((out / "part.json").read_text())
    assert verdict["done"] == verdict["planned"] == len(planned_runs(name, "smoke"))
    assert len(verdict["verdicts"]) == len(CLAIMS[name])
    figures = {file.stem for file in (out / "figures").iterdir()}
    assert figures
    for stem in figures:
        assert f"(figures/{stem}.svg)" in page
        assert all((out / "figures" / f"{stem}{suffix}").stat().st_size > 1000 for suffix in (".png", ".svg", ".pdf"))
        assert (root / "pages" / name / "smoke" / f"{stem}.svg").is_file()
    assert (out / "report-digits.html").read_text().startswith("<!doctype html>")
    assert f"]({name}/smoke/" in (root / "pages" / f"{name}.md").read_text()
    assert str(root) not in page, "a page must not name this machine's directories"
    assert f"[{name}]({name}.md)" in (root / "pages" / "README.md").read_text()


def check_the_same_command_goes_on(runs: Path) -> None:
    """What is done is skipped, what is not is repaired."""
    job = make_jobs(["fig-compose"], "smoke", runs)[0]
    assert job.pending == []
    cell = job.out / "cells" / job.planned[0].cell.name
    before = (cell / "metrics.jsonl").read_bytes()
    (cell / "summary.json").unlink()
    assert job.pending == job.planned[:1]
    untouched = job.out / "cells" / job.planned[1].cell.name / "metrics.jsonl"
    stamp = untouched.stat().st_mtime_ns
    assert reproduce(["fig-compose"], "smoke", runs, quiet=True) == 0
    assert (cell / "metrics.jsonl").read_bytes() == before
    assert untouched.stat().st_mtime_ns == stamp


def check_runs_are_shared(runs: Path) -> None:
    """A finished run is lent to whoever plans its config, under whatever name, from wherever it lies."""
    compose, job = make_jobs(["fig-compose", "fig-g"], "smoke", runs)
    (runs / "a pool of").mkdir()
    compose.out.rename(runs / "a pool of" / "mine")
    source = runs / "a pool of" / "mine" / "cells"
    for i, cell in enumerate(sorted(source.iterdir())):
        cell.rename(source / f"run {i}")
    configs = [row.cell.config.values() for row in compose.planned]
    shared = [row for row in job.planned if row.cell.config.values() in configs]
    assert len(shared) >= 3
    assert borrow(job, Shelf(runs)) == len(shared)
    assert {row.cell.name for row in job.planned} - {row.cell.name for row in job.pending} == {
        row.cell.name for row in shared
    }
    assert borrow(job, Shelf(runs)) == 0
    table = make_jobs(["tab-noniid"], "smoke", runs)[0]
    assert borrow(table, Shelf(runs)) == 2, "FedAvg and fedhyper at Dirichlet 0.5: another name, the same run"


def check_a_longer_run_lends_its_first_rounds(runs: Path, out: Path) -> None:
    job = make_jobs(["fig-g"], "smoke", runs)[0]
    row = next(row for row in job.planned if row.variant == "fedavg")
    shorter = replace(row, cell=Cell("short", row.cell.config.model_copy(update={"rounds": 4})))
    longer = replace(row, cell=Cell("long", row.cell.config.model_copy(update={"rounds": 11})))
    assert Shelf(runs).lend(shorter, out / "cells" / "short")
    assert not Shelf(runs).lend(longer, out / "cells" / "long")
    run_experiment(shorter.cell.config, out / "truth")
    lent, truth = load_runs([out / "cells" / "short"])[0], load_runs([out / "truth"])[0]
    assert (lent.status, len(lent.rounds), lent.config) == ("finished", 4, truth.config)
    kept = [[{k: v for k, v in r.items() if "seconds" not in k} for r in run.rounds] for run in (lent, truth)]
    assert kept[0] == kept[1]
    assert ended_before(shorter.cell, out) is not None


def test_a_config_of_an_older_version_is_the_same_config(tmp_path: Path) -> None:
    """What it did not know is filled in with today's defaults; what cannot be read is passed over."""
    row = planned_runs("fig-g", "smoke")[0]
    run_experiment(row.cell.config.model_copy(update={"rounds": 1}), tmp_path / "old")
    file = tmp_path / "old" / "config.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("aggregate", "sampling"))]
    file.write_text("\n".join(lines) + "\n")
    shutil.copytree(tmp_path / "old", tmp_path / "foreign")
    (tmp_path / "foreign" / "config.toml").write_text('method = "of-a-plugin"\n')
    assert Shelf(tmp_path).find(row.cell.config.model_copy(update={"rounds": 1})) == tmp_path / "old"
    assert Shelf(tmp_path).find(row.cell.config.model_copy(update={"rounds": 1, "seed": 9})) is None


def check_pages_alone(runs: Path) -> None:
    page = runs / "fig-robust" / "smoke" / "page.md"
    page.unlink()
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "fig-robust", "--no-run", "--out", str(runs)])
    assert ended.value.code == 0
    assert "21 of 21 runs" in page.read_text()


@pytest.mark.timeout(900)
def test_all_at_the_scale_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, pages = tmp_path / "runs", tmp_path / "pages"
    assert reproduce(["all"], "smoke", out, pages=pages, quiet=True) == 0
    assert {path.stem for path in (tmp_path / "pages").glob("*.md")} == {*EXPERIMENTS, "README"}
    assert "not run yet" not in (tmp_path / "pages" / "README.md").read_text()
    assert set(IDS) == {*EXPERIMENTS, "all"}
    capsys.readouterr()
    assert reproduce(["fig-g", "fig-sl"], "smoke", out, tasks=["digits"]) == 0
    assert "nothing left to do" in capsys.readouterr().out
