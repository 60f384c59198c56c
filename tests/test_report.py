"""The report without a browser: what is read, how it is grouped, what the tables and the page's source say."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # importlib mode: test modules are no package
from fake_runs import HOSTILE, fake_partition, write_comparison, write_hostile, write_json, write_run, write_sweep

from fedhyper.errors import StorageError, UserError
from fedhyper.lab.results.comparing import baseline, comparability, unfinished
from fedhyper.lab.results.curves import MAX_POINTS, bound_rows, curve_rows
from fedhyper.lab.results.figures.make import make_figures, part_figures
from fedhyper.lab.results.groups import copies, extended, make_groups
from fedhyper.lab.results.headline import headline
from fedhyper.lab.results.metrics import Stat, quantile
from fedhyper.lab.results.overlap import dashes
from fedhyper.lab.results.parts import make_parts
from fedhyper.lab.results.report import write_figures, write_report
from fedhyper.lab.results.series import make_series
from fedhyper.lab.results.stored import load_runs
from fedhyper.lab.results.tables import headline_table

# --- reading -------------------------------------------------------------------------------------------------


def test_finds_runs_sweeps_and_directories_of_either(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "one", rounds=3)
    write_run(tmp_path / "b" / "sweep" / "cells" / "x", rounds=3)
    write_run(tmp_path / "b" / "sweep" / "cells" / "y", rounds=3)
    (tmp_path / "b" / "sweep" / "sweep.toml").write_text("")
    assert [run.name for run in load_runs([tmp_path])] == ["a/one", "b/sweep/x", "b/sweep/y"]
    assert [run.name for run in load_runs([tmp_path / "b" / "sweep"])] == ["x", "y"]
    assert [run.name for run in load_runs([tmp_path / "a" / "one"])] == ["one"]
    assert len(load_runs([tmp_path / "a", tmp_path / "a" / "one"])) == 1, "a run named twice is one run"


def test_a_run_cut_off_while_it_was_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=10)
    (run / "summary.json").unlink()
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-40])
    (loaded,) = load_runs([run])
    assert len(loaded.rounds) == 9
    assert "line 10 was cut off" in loaded.problems[0]
    assert loaded.status == "unfinished"
    assert unfinished([loaded]) == ["run: unfinished after round 9 of 10."]
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "was cut off while it was written" in page
    assert "unfinished after round 9 of 10" in page


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.toml", b"task = ", "config.toml is not TOML"),
        ("config.toml", b"\xff\xfe", "config.toml is not TOML"),
        ("metrics.jsonl", b"", "metrics.jsonl is empty"),
        ("metrics.jsonl", b"[1]\n\x00\n{}\n" + b"[" * 100_000, "metrics.jsonl line 1 is no record"),
        ("metrics.jsonl", b'{"round": 1, "accuracy": "x", "test_loss": NaN, "global_lr": 1e999}\n', None),
        ("summary.json", b"[]", "summary.json holds no object"),
        ("summary.json", b'{"status": ["x"], "final_accuracy": "high"}', None),
        ("env.json", b"{", "env.json is not JSON"),
        ("partition.json", b"[1", "partition.json is not JSON"),
        ("partition.json", b'{"sizes": ["a"], "class_counts": 3}', None),
        ("partition.json", b'{"sizes": [], "class_counts": []}', None),
        ("metrics.jsonl", b'{"round": 1, "accuracy": ' + b"9" * 5000 + b"}\n", "metrics.jsonl line 1 is no record"),
    ],
)
def test_a_damaged_file_is_a_note_and_the_page_is_still_written(
    tmp_path: Path, file: str, content: bytes, said: str | None
) -> None:
    run = write_run(tmp_path / "run", rounds=4)
    (run / file).write_bytes(content)
    (loaded,) = load_runs([run])
    assert any(said in problem for problem in loaded.problems) if said else True
    assert write_report([run], tmp_path / "report.html").stat().st_size > 100_000


def test_a_run_that_never_finished_a_round(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=4)
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").unlink()
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "No accuracy was measured" in page


@pytest.mark.parametrize("made", ["missing", "empty", "file", "foreign"])
def test_nothing_to_report_is_one_clear_line(tmp_path: Path, made: str) -> None:
    path = tmp_path / "there"
    if made == "empty":
        path.mkdir()
    elif made == "file":
        path.write_text("not a run")
    elif made == "foreign":
        path.mkdir()
        (path / "config.toml").write_text('baseURL = "https://example.org"\n')
    with pytest.raises(UserError) as error:
        write_report([path], tmp_path / "report.html")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_resumed_round_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=4)
    again = json.dumps(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) | {"accuracy": 0.5})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(again + "\n")
    (loaded,) = load_runs([run])
    assert [record["round"] for record in loaded.rounds] == [1, 2, 3, 4]
    assert loaded.final_accuracy == 0.5


# --- grouping ------------------------------------------------------------------------------------------------


def test_seeds_form_a_group_and_labels_say_only_what_differs(tmp_path: Path) -> None:
    groups = make_groups(load_runs([write_comparison(tmp_path / "runs", rounds=5)]))
    assert [group.label for group in groups] == ["fedavg", "fedexp", "fedhyper-g", "fedhyper-g+cl"]
    assert [len(group.runs) for group in groups] == [3, 3, 3, 3]
    assert comparability(groups) == []


def test_a_setting_implied_by_the_method_is_not_repeated(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=3, options={"momentum": 0.9}, method="fedavgm")
    write_run(tmp_path / "b", rounds=3, method="fedavg", local_lr=0.1)
    write_run(tmp_path / "c", rounds=3, method="fedavg", local_lr=0.001)
    labels = [group.label for group in make_groups(load_runs([tmp_path]))]
    assert labels == ["fedavg, local_lr 0.001", "fedavg, local_lr 0.1", "fedavgm, local_lr 0.01"]


def test_an_option_that_one_method_varies_is_not_said_of_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=3, method="fedavgm", options={"momentum": 0.8})
    write_run(tmp_path / "b", rounds=3, method="fedavgm", options={"momentum": 0.9})
    write_run(tmp_path / "c", rounds=3, method="fedhyper", options={"momentum": 0.8})
    write_run(tmp_path / "d", rounds=3, method="fedavg")
    labels = [group.label for group in make_groups(load_runs([tmp_path]))]
    assert labels == ["fedavg", "fedavgm, options.momentum 0.8", "fedavgm, options.momentum 0.9", "fedhyper"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "mnist"}, "Not comparable: task differs (fmnist; mnist)"),
        ({"model": "mlp"}, "Not comparable: model differs"),
        ({"partition": {"kind": "iid"}}, "partition.kind differs (dirichlet; iid). Do not rank"),
        ({"rounds": 9}, "Unequal conditions: rounds differs (3; 9)"),
        ({"clients_per_round": 5}, "Unequal conditions: clients_per_round"),
    ],
)
def test_says_plainly_when_runs_cannot_be_compared(tmp_path: Path, change: dict[str, object], said: str) -> None:
    write_run(tmp_path / "a", rounds=3)
    write_run(tmp_path / "b", **({"method": "fedexp", "rounds": 3} | change))
    groups = make_groups(load_runs([tmp_path]))
    assert any(said in note for note in comparability(groups))
    assert headline(groups, make_series(groups)[0])[0] == "2 settings, side by side", "no ranking"
    assert "vs fedavg" in headline_table([tmp_path], "md")
    assert headline_table([tmp_path], "md").splitlines()[-1].endswith("| – | – |"), "no overhead across problems"


def _final(run: Path, accuracy: float) -> Path:
    """Make ``accuracy`` the last one that ``run`` measured."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["accuracy"] = accuracy
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_the_headline_compares_with_fedavg_at_its_best_rate(tmp_path: Path) -> None:
    for name, settings, final in (
        ("a", {"method": "fedavg", "local_lr": 0.001}, 0.20),
        ("b", {"method": "fedavg", "local_lr": 0.1}, 0.88),
        ("c", {"method": "fedhyper", "local_lr": 0.001}, 0.93),
    ):
        _final(write_run(tmp_path / name, rounds=3, **settings), final)
    groups = make_groups(load_runs([tmp_path]))
    title, why = headline(groups, make_series(groups)[0])
    assert title == "fedhyper ends at 93.0 %, 5.0 points above fedavg, local_lr 0.1"
    assert why.startswith("Compared with FedAvg's best of 2 settings.")
    rows = {line.split(" | ")[0]: line for line in headline_table([tmp_path], "md").splitlines()[2:]}
    assert rows["| fedavg, local_lr 0.001"].endswith("| – | – |"), "FedAvg has no overhead over FedAvg"
    assert "%" in rows["| fedhyper"].split("|")[-3]
    _final(tmp_path / "b", 0.97)
    groups = make_groups(load_runs([tmp_path]))
    title, _ = headline(groups, make_series(groups)[0])
    assert title == "fedavg, local_lr 0.1 ends at 97.0 %, 4.0 points above fedhyper"


def test_copies_of_a_run_are_one_run(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"seed{seed}", rounds=4, seed=seed)
    shutil.copytree(tmp_path / "seed0", tmp_path / "copy")
    runs = load_runs([tmp_path])
    (group,) = make_groups(runs)
    assert len(runs) == 3
    assert len(group.runs) == 2
    (said,) = copies(runs, [group])
    assert said.startswith("Of 3 runs 1 repeats another's config and seed")
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "a copy is no further seed" in page
    # of a run that was killed and its repetition the one that came to its end counts
    (tmp_path / "seed0" / "summary.json").unlink()
    (group,) = make_groups(load_runs([tmp_path]))
    assert {run.name for run in group.runs} == {"copy", "seed1"}


def test_runs_of_one_config_with_other_weights_are_no_copies(tmp_path: Path) -> None:
    def changed(run: Path, **keys: object) -> None:
        path = run / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    for name in ("a", "b"):
        write_run(tmp_path / name, rounds=4, method="fedhyper")
    runs = load_runs([tmp_path])
    (said,) = copies(runs, make_groups(runs))
    assert said.startswith("Of 2 runs 1 has another's config and seed but other weights")
    changed(tmp_path / "b", begun_with_rounds=2)  # a short run that was extended: its own setting
    runs = load_runs([tmp_path])
    groups = make_groups(runs)
    assert [group.label for group in groups] == ["begun_with_rounds 2", "begun_with_rounds none"]
    assert copies(runs, groups) == []
    (said,) = extended(runs)
    assert said.startswith("1 of 2 runs was begun with fewer or more rounds, and chose its rate for those")
    assert said in re.sub(r"&#x27;", "'", write_report([tmp_path], tmp_path / "report.html").read_text())
    assert "| begun_with_rounds 2 |" in headline_table([tmp_path], "md")


def test_tasks_and_lengths_have_parts_of_their_own(tmp_path: Path) -> None:
    for method in ("fedavg", "fedexp"):
        write_run(tmp_path / f"{method} a", method=method, task="mnist", rounds=4)
        write_run(tmp_path / f"{method} b", method=method, task="digits", rounds=4)
        write_run(tmp_path / f"{method} c", method=method, task="digits", rounds=9)
    parts = make_parts(load_runs([tmp_path]))
    assert {part.title for part in parts} == {
        "task mnist, rounds 4",
        "task digits, rounds 4",
        "task digits, rounds 9",
    }
    assert all([one.label for one in part.series] == ["fedavg", "fedexp"] for part in parts)
    figures = part_figures(parts, legend=False)
    drawn = {figure.key: {row["round"] for row in figure.chart.data["rows"]} for figure in figures if figure.by_series}
    lengths = {max(rounds) for key, rounds in drawn.items() if key.endswith("accuracy-by-round")}
    assert len({figure.key for figure in figures}) == len(figures)
    assert lengths == {4, 9}
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert page.count('<section class="part">') == 3
    assert "<h1>6 settings, side by side</h1>" in page
    assert any("part2-" in path.name for path in write_figures([tmp_path], tmp_path / "figures", ["svg"]))


def test_another_machine_or_partition_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=3)
    other = write_run(tmp_path / "b", rounds=3, method="fedexp")
    write_json(other / "env.json", {"machine": "arm64", "platform": "Darwin", "cpu_count": 8})
    write_json(other / "partition.json", fake_partition(30, seed=7))
    notes = comparability(make_groups(load_runs([tmp_path])))
    assert any("2 different machines" in note for note in notes)
    assert any("different partitions" in note for note in notes)


def test_mean_and_deviation_by_hand() -> None:
    # (0.1 + 0.2 + 0.6) / 3 = 0.3; squares 0.04 + 0.01 + 0.09 = 0.14; / 2 = 0.07; root = 0.26458
    stat = Stat.of([0.1, None, 0.2, 0.6])
    assert stat is not None
    assert stat.mean == pytest.approx(0.3)
    assert stat.std == pytest.approx(0.26458, abs=1e-5)
    assert stat.n == 3
    assert Stat.of([0.5]) == Stat(0.5, None, 1)
    assert Stat.of([None]) is None
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([0, 10], 0.1) == pytest.approx(1.0)


def test_a_method_that_reads_no_rate_is_measured_against_every_rate(tmp_path: Path) -> None:
    for method in ("fedavg", "fedexp", "fedhyper"):
        for lr in (0.01, 0.1) if method == "fedavg" else (0.01,):
            write_run(tmp_path / f"{method}{lr}", method=method, local_lr=lr, rounds=3)
    groups = {group.label: group for group in make_groups(load_runs([tmp_path]))}
    rivals = {name: [g.settings["local_lr"] for g in baseline(one, [*groups.values()])] for name, one in groups.items()}
    assert sorted(rivals["fedhyper"]) == [0.01, 0.1]
    assert rivals["fedexp, local_lr 0.01"] == [0.01]


def test_the_page_of_one_run_says_what_its_start_cost(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", method="fedhyper", rounds=3)
    assert "to find the rate" not in write_report([run], tmp_path / "without.html").read_text()
    first, *others = (run / "metrics.jsonl").read_text().splitlines()
    lines = [json.dumps(json.loads(first) | {"start_trials": 123}), *others]
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    page = write_report([run], tmp_path / "with.html").read_text()
    assert "<h2>Rounds to target</h2>" not in page, "its tile says it"
    assert "<dt>extra local rounds to find the rate</dt><dd>123</dd>" in page


def test_a_difference_within_the_spread_is_called_level(tmp_path: Path) -> None:
    for method, finals in {"fedavg": (0.70, 0.74), "fedexp": (0.71, 0.75)}.items():
        for seed, final in enumerate(finals):
            _final(write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, rounds=3), final)
    groups = make_groups(load_runs([tmp_path]))
    title, why = headline(groups, make_series(groups)[0])
    assert title == "fedexp ends at 73.0 ± 2.8 %, level with fedavg"
    assert "1.0 points is within the spread" in why


def test_a_diverged_run_stays_in_the_mean(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", rounds=10, seed=0)
    bad = write_run(tmp_path / "bad", rounds=10, seed=1)
    lines = (bad / "metrics.jsonl").read_text().splitlines(keepends=True)[:4]
    (bad / "metrics.jsonl").write_text("".join(lines))
    summary = json.loads((bad / "summary.json").read_text()) | {"status": "diverged", "rounds": 4}
    write_json(bad / "summary.json", summary)
    (group,) = make_groups(load_runs([tmp_path]))
    last = curve_rows(make_series([group])[0])[-1]
    kept = [json.loads(line)["accuracy"] for line in ((good / "metrics.jsonl").read_text().splitlines()[-1], lines[-1])]
    assert last["round"] == 10
    assert last["accuracy"] == pytest.approx(sum(kept) / 2, rel=1e-4)
    assert group.accuracy() is not None
    assert group.accuracy().mean == pytest.approx(sum(kept) / 2)  # type: ignore[union-attr]


def test_a_regression_that_diverged_is_short_and_said_to_have(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name in ("fedavg", "fedhyper"):
            write_run(tmp_path / f"{name}{seed}", method=name, seed=seed, rounds=4)
        _final(tmp_path / f"fedavg{seed}", -1.8e57 * (seed + 1))
        _final(tmp_path / f"fedhyper{seed}", 0.9)
    groups = make_groups(load_runs([tmp_path]))
    title, why = headline(groups, make_series(groups)[0])
    assert title == "fedhyper ends at 90.0 ± 0.0 %, fedavg diverged"
    assert why.startswith("It ends at -2.7e+59 ± 1.3e+59 %.")
    assert headline(groups[:1], make_series(groups[:1])[0])[0].startswith("fedavg diverged: -2.7e+59 ± 1.3e+59 % after")
    for style in ("md", "latex"):
        assert "00000" not in headline_table([tmp_path], style)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    text = re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", page))
    assert not re.search(r"\d{12}", text)


def test_a_sweep_is_a_line_a_method_and_never_mixes_tasks(tmp_path: Path) -> None:
    for task in ("digits", "fmnist"):
        for method in ("fedavg", "fedexp"):
            for local_lr in (0.001, 0.01, 0.1):
                name = f"{task} {method} {local_lr}"
                write_run(tmp_path / name, task=task, method=method, local_lr=local_lr, rounds=3)
    series, note = make_series(make_groups(load_runs([tmp_path])))
    assert sorted((one.label, len(one.runs)) for one in series) == [
        ("task digits, fedavg", 3),
        ("task digits, fedexp", 3),
        ("task fmnist, fedavg", 3),
        ("task fmnist, fedexp", 3),
    ]
    assert note is not None
    assert note.startswith("12 settings: each line is the median over the settings of one task and method")


def test_long_runs_are_thinned_to_their_evaluated_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=1000, eval_every=7)
    rows = curve_rows(make_series(make_groups(load_runs([tmp_path])))[0])
    assert len(rows) <= MAX_POINTS
    assert rows[-1]["round"] == 1000
    assert sum("accuracy" in row for row in rows) >= 140, "of 143 evaluations nearly all are drawn"


@pytest.mark.parametrize(
    ("settings", "which", "expected"),
    [
        ({"method": "fedhyper-g", "global_lr": 1.0}, "global_lr", [1 / 3, 3.0]),
        ({"method": "fedhyper-g", "global_lr": 1.0}, "local_lr", []),
        ({"method": "fedhyper-g+cl", "local_lr": 0.02}, "local_lr", [0.002, 0.2]),
        ({"method": "fedhyper-sl", "options": {"local_bound": 4.0}, "local_lr": 0.02}, "local_lr", [0.005, 0.08]),
        ({"method": "fedhyper-sl", "options": {"bounds": "absolute"}}, "local_lr", [0.1, 10.0]),
        ({"method": "fedavg"}, "global_lr", []),
        ({"method": "fedhyper"}, "local_lr", []),
    ],
)
def test_bounds(tmp_path: Path, settings: dict[str, object], which: str, expected: list[float]) -> None:
    write_run(tmp_path / "run", rounds=3, **settings)
    series, _ = make_series(make_groups(load_runs([tmp_path])))
    assert [row["limit"] for row in bound_rows(series, which)] == pytest.approx(expected, rel=1e-4)


# --- figures -------------------------------------------------------------------------------------------------


def test_every_content_is_there_when_the_runs_have_its_data(tmp_path: Path) -> None:
    groups = make_groups(load_runs([write_comparison(tmp_path / "runs", seeds=2, rounds=20)]))
    keys = {figure.key for figure in make_figures(groups, make_series(groups)[0], legend=False)}
    assert keys == {
        *(f"{y}-by-{x}" for y in ("accuracy", "test-loss") for x in ("round", "seconds", "megabytes")),
        *("train-loss-by-round", "global-lr-by-round", "local-lr-by-round", "cosine-by-round", "hypergrad-by-round"),
        *("rounds-to-target", "client-accuracy", "guard", "partition"),
    }


def test_what_runs_do_not_have_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=5, target_accuracy=0.0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{"round": line["round"], "accuracy": line["accuracy"]} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    (run / "partition.json").unlink()
    groups = make_groups(load_runs([run]))
    assert [f.key for f in make_figures(groups, make_series(groups)[0], legend=False)] == ["accuracy-by-round"]


def test_heat_maps_of_a_grid(tmp_path: Path) -> None:
    for method in ("fedavg", "fedhyper"):
        for local_lr in (0.001, 0.01, 0.1):
            for global_lr in (0.5, 1.0):
                name = f"{method} {local_lr} {global_lr}"
                write_run(tmp_path / name, method=method, local_lr=local_lr, global_lr=global_lr, rounds=4)
    groups = make_groups(load_runs([tmp_path]))
    figures = {f.key: f for f in make_figures(groups, make_series(groups)[0], legend=False)}
    finals = {(g.method, g.settings["local_lr"], g.settings["global_lr"]): g.accuracy() for g in groups}
    cells = {(c["local"], c["global"]): c["value"] for c in figures["gain-map-1"].chart.data["rows"]}
    assert len(cells) == 6
    mine, theirs = finals["fedhyper", 0.001, 0.5], finals["fedavg", 0.001, 0.5]
    assert mine is not None
    assert theirs is not None
    assert cells["0.001", "0.5"] == pytest.approx(100 * (mine.mean - theirs.mean))
    assert {"accuracy-map-1", "accuracy-map-2", "gain-map-1"} <= figures.keys()
    assert figures["accuracy-map-1"].title == "Accuracy of fedavg"


def test_a_page_says_how_many_of_its_settings_are_one_run(tmp_path: Path) -> None:
    for method in ("fedavg", "fedhyper"):
        for local_lr in (0.01, 0.1, 1.0):
            for global_lr in (0.5, 1.0):
                name = f"{method} {local_lr} {global_lr}"
                run = write_run(tmp_path / name, method=method, local_lr=local_lr, global_lr=global_lr, rounds=4)
                if method == "fedhyper":  # it does not read the initial rates
                    summary = json.loads((run / "summary.json").read_text()) | {"weights_sha256": "the same"}
                    write_json(run / "summary.json", summary)
    groups = make_groups(load_runs([tmp_path]))
    figures = {f.title: f.caption for f in make_figures(groups, make_series(groups)[0], legend=False)}
    assert "6 settings, one run: the others are the same bits." in figures["Accuracy of fedhyper"]
    assert " The 6 settings of fedhyper are one run, bit for bit." in headline(groups, make_series(groups)[0])[1]
    assert "same bits" not in figures["Accuracy of fedavg"]
    assert "Best against best: " in figures["Gain of fedhyper over fedavg at the same rates"]


@pytest.mark.parametrize(
    ("losses", "log", "said"),
    [
        ([2.0, 1.5, 1.0], False, ""),
        ([2.3, 1.0, 0.1, 0.0, 0.0], False, ""),
        ([2.3, 1.0, 0.1, 0.01, 0.0], True, "Values below 0.005 are drawn at the bottom."),
        ([2.3, 1.0, 1.0, 1.0, 1e-12], True, "Values below 0.001 are drawn at the bottom."),
        ([2.3, 1e9, 1e9], True, ""),
    ],
)
def test_a_loss_near_zero_or_beyond_measure_leaves_the_chart_readable(
    tmp_path: Path, losses: list[float], log: bool, said: str
) -> None:
    run = write_run(tmp_path / "run", rounds=len(losses))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [line | {"train_loss": loss} for line, loss in zip(lines, losses, strict=True)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    groups = make_groups(load_runs([run]))
    figure = {f.key: f for f in make_figures(groups, make_series(groups)[0], legend=False)}["train-loss-by-round"]
    spec = json.dumps(figure.chart.to_dict())
    assert ('"type": "log"' in spec) == log
    assert said in figure.caption
    assert ("drawn at the bottom" in figure.caption) == bool(said)


def test_lines_on_each_other_are_striped() -> None:
    rows = [{"s": s, "round": t, "y": float(t if s < 3 else 2 * t)} for s in range(4) for t in range(1, 11)]
    # three lie on each other: the first is whole, each of the others leaves 8 pixels a turn to those beneath it
    assert dashes(rows, "round", "y", count=4) == [[1, 0], [0, 8, 8, 8], [0, 16, 8, 0], [1, 0]]
    assert dashes([row for row in rows if row["s"] in (0, 3)], "round", "y", count=4) is None
    assert dashes([], "round", "y", count=4) is None


def test_captions_say_only_what_the_runs_show(tmp_path: Path) -> None:
    def captions(**settings: object) -> dict[str, str]:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        for seed in range(2):
            write_run(tmp_path / "runs" / str(seed), rounds=5, seed=seed, **settings)
        groups = make_groups(load_runs([tmp_path / "runs"]))
        return {f.key: f.caption for f in make_figures(groups, make_series(groups)[0], legend=False)}

    assert captions(method="fedavg")["local-lr-by-round"] == "Log scale. Band: one standard deviation over seeds."
    both = captions(method="fedhyper-g+cl")["local-lr-by-round"]
    assert both.startswith("Log scale. Dashed: the bounds of fedhyper-g+cl.")
    assert "slowest to the fastest client" in both
    assert "hypergrad-by-round" not in captions(method="fedexp")


def test_defaults_are_folded_and_choices_are_not(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=3, local_lr=0.01)
    write_run(tmp_path / "b", rounds=3, local_lr=0.5, method="fedhyper-g", options={"global_bound": 3.0})
    page = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "report.html").read_text()
    shown, folded = page.partition("<h2>Settings</h2>")[2].partition("<h2>Runs</h2>")[0].split("<details>")
    assert "settings at their defaults" in folded
    for key, chosen in {"local_lr": True, "method": True, "rounds": True, "task": True, "batch_size": False}.items():
        assert (f'<th scope="row">{key}</th>' in shown) == chosen, key
        assert (f'<th scope="row">{key}</th>' in folded) == (not chosen), key
    assert "options.global_bound" in folded, "a method's own default is no choice"


def test_one_rate_gives_a_line_instead_of_a_map(tmp_path: Path) -> None:
    for local_lr in (0.001, 0.01, 0.1):
        write_run(tmp_path / str(local_lr), local_lr=local_lr, rounds=4)
    groups = make_groups(load_runs([tmp_path]))
    keys = [f.key for f in make_figures(groups, make_series(groups)[0], legend=False)]
    assert "accuracy-by-local-lr" in keys
    assert not any("map" in key for key in keys)


def test_figures_as_files(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=5)
    written = write_figures([tmp_path / "run"], tmp_path / "figures", formats=("png", "svg", "pdf"))
    begins = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}
    assert len(written) >= 30
    assert all(path.read_bytes().startswith(begins[path.suffix[1:]]) for path in written)
    with pytest.raises(UserError, match="'gif' is unknown; use png, svg, pdf"):
        write_figures([tmp_path / "run"], tmp_path, formats=("gif",))


@pytest.mark.parametrize("clients", [10, 1000])
def test_partition_chart_alone(tmp_path: Path, clients: int) -> None:
    from fedhyper.lab.results.charts.chart import save
    from fedhyper.lab.results.charts.partition import partition_chart

    path = save(partition_chart(fake_partition(clients)), tmp_path / "deep" / "partition.svg")
    assert path.read_text().count("<path") > 10
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        save(partition_chart(fake_partition(3)), tmp_path / "partition.bmp")
    with pytest.raises(UserError, match=r"partition\.json"):
        partition_chart({})


# --- tables --------------------------------------------------------------------------------------------------


def test_tables_escape_what_their_readers_would_run(tmp_path: Path) -> None:
    for index, text in enumerate(HOSTILE):
        write_run(tmp_path / str(index), method=text, rounds=3)
    rows = list(csv.reader(io.StringIO(headline_table([tmp_path], "csv"))))
    assert len(rows) == 1 + len(HOSTILE)
    assert {len(row) for row in rows} == {17}
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row[:2])
    lines = headline_table([tmp_path], "md").splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {10}
    assert not any(re.search(r"(?<!\\)<", line) for line in lines)
    latex = headline_table([tmp_path], "latex")
    assert latex.count(r"\\" + "\n") == 1 + len(HOSTILE)
    assert not re.search(r"(?<!\\)[#%_]", latex)
    with pytest.raises(UserError, match="use md, latex or csv"):
        headline_table([tmp_path], "xls")  # type: ignore[arg-type]


def test_runs_of_several_kinds_share_no_table(tmp_path: Path) -> None:
    for i, (kind, rounds) in enumerate((("dirichlet", 4), ("iid", 2), ("dirichlet", 4), ("shards", 2))):
        write_run(tmp_path / str(i), rounds=rounds, partition={"kind": kind}, method="fedexp" if i == 2 else "fedavg")
    tables = headline_table([tmp_path], "md").split("\n\n")
    assert tables[::2] == [
        f"**partition.kind {kind}, rounds {rounds}**" for kind, rounds in (("dirichlet", 4), ("iid", 2), ("shards", 2))
    ]
    assert [len(table.splitlines()) - 2 for table in tables[1::2]] == [2, 1, 1]
    latex = headline_table([tmp_path], "latex")
    assert re.findall(r"^% (.*)$", latex, re.M) == [title.strip("*") for title in tables[::2]]
    assert latex.count(r"\begin{tabular}") == 3
    rows = list(csv.DictReader(io.StringIO(headline_table([tmp_path], "csv"))))
    assert [row["kind"] for row in rows] == [tables[i].strip("*") for i in (0, 0, 2, 4)]


def test_headline_table_by_hand(tmp_path: Path) -> None:
    for method, seconds, sent in (("fedavg", 2.0, 100), ("fedexp", 3.0, 110)):
        run = write_run(tmp_path / method, method=method, rounds=2, target_accuracy=0.5)
        record = {"seconds_train": seconds, "seconds_aggregate": 0.0, "seconds_evaluate": 1.0}
        record |= {"bytes_up": sent * 500_000, "bytes_down": sent * 500_000}
        rounds = [record | {"round": 1, "accuracy": 0.4}, record | {"round": 2, "accuracy": 0.6}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    fedavg, fedexp = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in headline_table([tmp_path], "md").splitlines()[2:]
    )
    # two rounds of 2 s training and 1 s evaluation; evaluation is no overhead
    assert fedavg == ["fedavg", "1", "60.0", "2", "6.0", "200.0", "2", "–", "–"]
    assert fedexp == ["fedexp", "1", "60.0", "2", "8.0", "220.0", "3", "+50.0 %", "+10.0 %"]


# --- the page ------------------------------------------------------------------------------------------------


class _Outline(HTMLParser):
    """Tags and attributes of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_and_allows_no_eval(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=5)
    page = write_report([tmp_path / "run"], tmp_path / "out" / "report.html", title="A <title>").read_text()
    outline = _Outline(page)
    policy = next(a["content"] for t, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not any({"src", "href", "style"} & attrs.keys() for _, attrs in outline.tags)
    assert "A &lt;title&gt;" in page
    assert page.count("window.vegaEmbed=") == 1, "the library is in the page once"


def test_every_chart_has_words_for_a_screen_reader(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=1, rounds=5)
    outline = _Outline(write_report([tmp_path / "runs"], tmp_path / "report.html").read_text())
    charts = [attrs for _, attrs in outline.tags if "data-chart" in attrs]
    assert len(charts) >= 12
    assert all(len(attrs["aria-label"] or "") > 30 for attrs in charts)
    assert {attrs["role"] for attrs in charts} == {"img"}


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", rounds=3)
    out = tmp_path / "out" / "report.html"
    out.parent.mkdir()
    out.write_text("old")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_report([tmp_path / "run"], out)
    assert out.read_text() == "old"
    assert list(out.parent.iterdir()) == [out]


def test_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    script = (
        "import sys; sys.modules['altair'] = None\nfrom pathlib import Path\nfrom fedhyper.errors import UserError\n"
        "from fedhyper.lab.results.report import write_report\n"
        "from fedhyper.lab.results.tables import headline_table\n"
        "try:\n    write_report([Path('run')], Path('report.html'))\nexcept UserError as error:\n    print(error)\n"
        "print(headline_table([Path('run')], 'md'))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    said, table = done.stdout.split("\n", 1)
    assert "pip install '.[report]' in the clone, or pip install 'fedhyper[report]'" in said
    assert "fedavg" in table, "tables need no extra"


def test_hostile_strings_stay_text_in_the_source(tmp_path: Path, tried: Callable[[int], None]) -> None:
    tried(len(HOSTILE))
    for index, text in enumerate(HOSTILE):
        write_hostile(tmp_path / "runs" / str(index), text)
    page = write_report([tmp_path / "runs"], tmp_path / "report.html", title=HOSTILE[0]).read_text()
    outline = _Outline(page)
    assert sum(tag == "script" for tag, _ in outline.tags) == 3
    assert not {"iframe", "img", "base", "link", "svg", "a"} & {tag for tag, _ in outline.tags}
    assert not any(name.startswith("on") for _, attrs in outline.tags for name in attrs)
    data = re.search(r'id="page-data">(.*?)</script>', page, re.S)
    assert data is not None
    assert not re.search("[<>&\u2028\u2029]", data[1])
    json.loads(data[1])


@pytest.mark.parametrize("runs", [1, 2, 9])
def test_a_hostile_method_stays_text_in_the_headline(tmp_path: Path, runs: int) -> None:
    # The other settings agree, so the page names the method in its first sentence, alone, compared, and in a sweep.
    for index in range(runs):
        write_run(
            tmp_path / "runs" / str(index), method=f"<img src=x>{'!' * (index % 2)}", local_lr=0.1**index, rounds=3
        )
    page = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert re.search("<h1>&lt;img src=x&gt;", page)
    assert "img" not in {tag for tag, _ in _Outline(page).tags}


def test_a_sweep_of_75_runs_is_small_and_quick(tmp_path: Path) -> None:
    import time

    sweep = write_sweep(tmp_path / "sweep", rounds=200)
    start = time.process_time()  # not the clock on the wall: other tests may be running
    page = write_report([sweep], tmp_path / "report.html")
    assert time.process_time() - start < 20
    assert page.stat().st_size < 5e6
    shutil.rmtree(sweep)


def test_many_methods_with_one_setting_each_are_a_comparison() -> None:
    """Nine methods are nine lines of a table, not the median of nine sweeps; FedAvg stays, however low it ends."""
    from fedhyper.lab.results.groups import Group
    from fedhyper.lab.results.series import make_series
    from fedhyper.lab.results.stored import StoredRun

    def group(method: str, accuracy: float) -> Group:
        config = {"task": "digits", "method": method}
        last = {"round": 1, "accuracy": accuracy}
        run = StoredRun(
            name=method, path=Path(method), config=config, rounds=[last], summary=None, env=None, partition=None
        )
        return Group(label=method, settings=config, runs=[run])

    groups = [group("fedavg", 0.1), *(group(f"method-{i}", 0.5 + i / 100) for i in range(9))]
    series, note = make_series(groups)
    assert len(series) == 8
    assert series[0].label == "fedavg"
    assert {s.over for s in series} == {"seeds"}
    assert "method-0" not in {s.label for s in series}
    assert note is not None
    assert "FedAvg among them" in note


def test_runs_from_before_a_key_are_grouped_with_those_of_today(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", seed=0)
    new = write_run(tmp_path / "new", seed=1)
    text = (new / "config.toml").read_text()
    (new / "config.toml").write_text('dtype = "float32"\naugment = "none"\nwarmup_rounds = 0\n' + text)
    assert "dtype" not in (old / "config.toml").read_text()
    (group,) = make_groups(load_runs([tmp_path]))
    assert len(group.runs) == 2
