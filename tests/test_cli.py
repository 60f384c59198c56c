"""The command line: what it prints, one line an error, the exit codes, and how soon it starts."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedhyper
from fedhyper.lab import demo
from fedhyper.lab.cli import main
from fedhyper.lab.commands import run as run_command
from fedhyper.lab.config.model import load_config, make_config
from fedhyper.lab.running.display import JsonLines, PlainLines, make_display
from fedhyper.lab.running.interrupt import Interrupted
from fedhyper.lab.running.live import LiveTable, round_table
from fedhyper.lab.running.run import Run, run_experiment
from fedhyper.lab.running.words import duration, number, percent, sparkline
from fedhyper.lab.starters import experiment_file, starters

TINY = "rounds = 3\nclients = 6\nclients_per_round = 3\nmethod = 'fedavg'\neval_every = 1\n"


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return "tiny.toml"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line that a command which must fail prints on stderr."""
    assert call(*arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fedhyper: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"fedhyper {fedhyper.__version__}\n"
    for command in ([], ["run"], ["sweep"], ["report"], ["data"], ["data", "fetch"], ["partition"], ["demo"]):
        assert call(*command, "--help") == 0
        assert "Usage" in capsys.readouterr().out
    assert call() == 2
    assert capsys.readouterr().out.count("Usage") == 1
    assert call("data") == 2
    assert capsys.readouterr().out.count("Usage") == 1


def test_python_m_fedhyper() -> None:
    done = subprocess.run([sys.executable, "-m", "fedhyper", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fedhyper {fedhyper.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rn"], "did you mean 'run'?"),
        (["run"], "missing argument"),
        (["run", "{}", "--resum"], "--resume"),
        (["run", "{}", "--out"], "requires an argument"),
        (["run", "{}", "--workers", "x"], "--workers"),
        (["run", "{}", "--workers", "0"], "--workers"),
        (["run", "{}", "--device", "gpu"], "--device gpu is not known; use cpu, cuda or cuda:1"),
        (["run", "{}", "--device", "cuda:99"], "--device cuda:99 is not there; use cpu"),
        (["run", "missing.toml"], "cannot read missing.toml"),
        (["run", "digts"], "neither a file nor an experiment of fedhyper; did you mean 'digits'?"),
        (["run", "{}", "--resume", "--fresh"], "choose one"),
        (["run", "{}", "alpha=0.3"], "command line: key 'alpha' is not known; write global_lr"),
        (["run", "{}", "method=auto"], "command line: method 'auto' is called fedhyper here"),
        (["run", "{}", "clients_per_round=300"], "command line: clients_per_round = 300 must not exceed"),
        (["run", "{}", "method=fedavgg"], "command line: there is no method 'fedavgg'"),
        (["run", "{}", "method=fedavgm", "options.momentun=0.9"], "command line: key 'options.momentun'"),
        (["new", "tiny"], "tiny.toml exists"),
        (["new", "other", "--like", "fmnst"], "did you mean 'fmnist'?"),
        (["run", "{}", "locl_lr=1"], "did you mean 'local_lr'?"),
        (["run", "{}", "local_lr=nan"], "command line: local_lr = nan must be a finite number"),
        (["run", "{}", "rounds=0"], "rounds = 0 must be at least 1"),
        (["run", "{}", "rounds"], "'rounds' is not key=value"),
        (["run", "{}", "task=digts"], "did you mean 'digits'?"),
        (["run", "{}", "model=cn"], "did you mean 'cnn'?"),
        (["run", "{}", "model=mlp", "model_options.hiden=3"], "did you mean 'hidden'?"),
        (["run", "{}", "clients=2000"], "examples"),
        (["run", "{}", "a\x1b[31mb=1"], "is not key=value"),
        (["sweep", "{}"], "missing argument"),
        (["sweep", "{}", "seed=2..1"], "no range"),
        (["sweep", "{}", "seed=0..100000"], "more than 100,000 values"),
        (["report", "missing"], "no such path"),
        (["report", "."], "no runs"),
        (["run", "{}", "method=fedprox", "options.mu=1e39"], "options.mu = 1e+39 must be in [0, 1e+06]"),
        (["run", "{}", "method=delta-sgd", "options.eta0=1e39"], "options.eta0 = 1e+39 must be in (0, 1e+06]"),
        (["run", "{}", "float=3"], "command line: key 'float' is not known"),
        (["run", "{}", "options.float=[1]"], "command line: options.float = [1] must be a finite number"),
        (["run", "{}", "options.a.b=3"], 'command line: options.a = {"b": 3} must be a finite number'),
        (["run", "{}", "options={a=[1]}"], "command line: options.a = [1] must be a finite number"),
        (["run", "{}", "partition.kind=foo"], "command line: partition.kind: there is no partition kind 'foo'"),
        (["run", "{}", "seed=2020-01-01"], "command line: seed = 2020-01-01 must be a whole number"),
        (["run", "{}", "method=fedprox", 'options.mu="0.1"'], 'options.mu = "0.1" must be a number, in [0, 1e+06]'),
        (["run", "{}", "method=fedprox", "options.mu=true"], "options.mu = true must be a number, in [0, 1e+06]"),
        (["run", "{}", "privacy.delta=0.9"], "command line: privacy.delta makes the run private, with the default"),
        (["run", "{}", "local_lr=0.1", "local_lr=0.5"], "command line: local_lr is given twice; leave one out"),
        (["new", ""], "NAME = '' is not the name of a file"),
        (["new", "."], "NAME = '.' is not the name of a file"),
        (["run", "{}", "--rounds", "3"], "no such option: --rounds; did you mean 'rounds=3'?"),
        (["run", "{}", "--rounds", "--quiet"], "no such option: --rounds; did you mean 'rounds=VALUE'?"),
        (["sweep", "{}", "--seed=0..2"], "no such option: --seed; did you mean 'seed=0..2'?"),
        (["run", "{}", "kind=iid"], "command line: key 'kind' is not known; did you mean 'partition.kind'?"),
        (["run", "{}", "Partition.Kind=iid"], "command line: key 'Partition' is not known; did you mean 'partition'?"),
        (
            ["run", "{}", "partition.Kind=iid"],
            "command line: key 'partition.Kind' is not known; did you mean 'partition",
        ),
        (["run", "{}", "partition.alpha=0.1"], "is not known; did you mean 'partition.concentration'?"),
        (["run", "{}", "partition=iid"], "did you mean 'partition.kind=iid'?"),
        (["run", "{}", "local-lr=0.1"], "key 'local-lr' is not known; did you mean 'local_lr'?"),
        (["run", "{}", "ROUNDS=3"], "key 'ROUNDS' is not known; did you mean 'rounds'?"),
        (["run", "{}", "method=FedAvg"], "did you mean 'fedavg'?"),
        (["run", "{}", "workers=2"], "key 'workers' is not known; it is no part of a config; write --workers VALUE"),
        (["run", "{}", "seed=0..2"], "must be a whole number; several values are for fedhyper sweep"),
        (["run", "{}", "local_lr=1,2"], "must be a number; several values are for fedhyper sweep"),
        (["run", "digits.toml"], "there is no digits.toml here; fedhyper has one inside: write digits, or"),
        (["run", "tiny"], "did you mean 'tiny.toml'?"),
        (
            ["sweep", "{}", "method=fedavg,fedavgm", "options.momentum=0.5,0.9"],
            "it takes none; write fedavgm:options.momentum=VALUES",
        ),
        (["data", "fetch", "mnst"], "did you mean 'mnist'?"),
        (["data", "fetch", "digits"], "digits come with scikit-learn: there is nothing to fetch or check"),
        (["data", "check", "mnist", "digits"], "digits come with scikit-learn"),
        (["data", "check", "mnst"], "did you mean 'mnist'?"),
        (["partition", "{}", "partition.kind=iidd"], "did you mean 'iid'?"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], toml: str, arguments: list[str], says: str) -> None:
    message = fails(capsys, 2, *(toml if part == "{}" else part for part in arguments))
    assert says.lower() in message.lower()
    assert message.lower().count("did you mean") <= 1
    assert message.strip().isprintable()
    assert [path.name for path in Path().rglob("*") if path.is_file()] == ["tiny.toml"]


def test_missing_and_damaged_data(
    capsys: pytest.CaptureFixture[str], toml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path / "data"))
    assert "fedhyper data fetch fmnist" in fails(capsys, 5, "run", toml, "task=fmnist")
    assert call("data", "list") == 0
    assert capsys.readouterr().out.count(" missing ") == 4
    assert call("data", "check") == 0  # nobody asked for any of them
    assert call("data", "check", "--help") == 0
    assert "a dataset that was named is missing" in " ".join(re.sub("[│]", "", capsys.readouterr().out).split())
    assert call("data", "check", "mnist") == 5
    capsys.readouterr()
    assert call("data", "list", "--json") == 0
    assert [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()] == ["missing"] * 4
    (tmp_path / "data" / "shakespeare").mkdir(parents=True)
    (tmp_path / "data" / "shakespeare" / "input.txt").write_text("not a play")
    assert "is damaged" in fails(capsys, 5, "run", toml, "task=shakespeare", "partition.kind=natural")


def test_run_resume_and_exit_codes(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("run", toml, "seed=3", "--no-report") == 0
    out = capsys.readouterr().out
    assert "round    3/3" in out
    assert "finished after round 3" in out
    assert "files in runs/tiny/seed=3" in out
    before = Path("runs/tiny/seed=3/metrics.jsonl").read_bytes()
    assert call("run", toml, "seed=3", "--no-report") == 0  # finished: nothing is computed again
    assert "continuing after round 3 of 3" in capsys.readouterr().out
    assert Path("runs/tiny/seed=3/metrics.jsonl").read_bytes() == before
    assert call("run", toml, "seed=3", "rounds=5", "--no-report", "--quiet") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert len(Path("runs/tiny/seed=3/metrics.jsonl").read_text().splitlines()) == 5
    assert "has 5 rounds already, more than rounds = 3" in fails(capsys, 2, "run", toml, "seed=3")
    for how in ([], ["--resume"]):
        other = fails(capsys, 4, "run", toml, "seed=4", "--out", "runs/tiny/seed=3", *how)
        assert "seed (4, not 3)" in other
    thesis = Path("runs/tiny/seed=3/thesis.tex")
    thesis.write_text("not ours")
    fresh = ("run", toml, "seed=4", "--out", "runs/tiny/seed=3", "--fresh", "--no-report", "--quiet")
    assert "also holds thesis.tex" in fails(capsys, 2, *fresh)
    assert len(Path("runs/tiny/seed=3/metrics.jsonl").read_text().splitlines()) == 5, "nothing was deleted"
    thesis.unlink()
    assert call(*fresh) == 0
    assert len(Path("runs/tiny/seed=3/metrics.jsonl").read_text().splitlines()) == 3
    assert "nothing to resume" in fails(capsys, 4, "run", toml, "--resume")
    diverging = ("method=fedprox", "options.mu=1e6", "local_lr=1e6", "rounds=9", "max_bad_rounds=2", "batch_size=8")
    assert call("run", toml, *diverging, "--no-report") == 3
    assert "no usable update for 2 rounds" in capsys.readouterr().err
    assert "is a file" in fails(capsys, 2, "run", toml, "--out", toml)
    assert "Not a directory" in fails(capsys, 74, "run", toml, "--out", f"{toml}/x")


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (2, ["clients=2000"]),
        (2, ["model=lstm"]),
        (2, ["subset=5", "partition.min_size=100"]),
        (2, ["model=mlp", "model_options.hidden=0"]),
        (2, ["validation=0.5", "clients=1000"]),
        (2, ["--engine", "flower", "validation=0.1"]),
        (2, ["--track", "wandb"]),
        (5, ["task=mnist"]),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, list) else "",
)
def test_fresh_deletes_nothing_before_the_new_run_can_start(
    capsys: pytest.CaptureFixture[str], toml: str, monkeypatch: pytest.MonkeyPatch, code: int, asked: list[str]
) -> None:
    monkeypatch.setenv("FEDHYPER_DATA", "nothing-here")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert call("run", toml, "rounds=1", "--out", "kept", "--no-report", "--quiet") == 0
    before = {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()}
    fails(capsys, code, "run", toml, "rounds=1", "--out", "kept", "--fresh", *asked)
    assert {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()} == before


def test_json(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("run", toml, "--json", "--no-report") == 0
    *records, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [record["round"] for record in records] == [1, 2, 3]
    assert last["summary"] == json.loads(Path("runs/tiny/base/summary.json").read_text())
    assert len(last["summary"]["weights_sha256"]) == 64
    assert records == [json.loads(line) for line in Path("runs/tiny/base/metrics.jsonl").read_text().splitlines()]


def test_experiments_of_the_package(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("run", "digits", "rounds=1", "--no-report", "--quiet") == 0
    assert Path("runs/digits/base/summary.json").is_file()
    assert call("new", "mine", "--like", "fmnist") == 0
    assert "fedhyper run mine.toml" in capsys.readouterr().out
    assert 'task = "fmnist"' in Path("mine.toml").read_text()
    for name in starters():
        load_config(experiment_file(Path(name)))


def test_a_file_that_is_called_like_an_experiment_of_the_package(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("new", "digits") == 0
    capsys.readouterr()
    assert call("run", "digits", "rounds=1", "--no-report", "--quiet") == 0
    said = "digits is the config inside fedhyper; for the file digits.toml here write digits.toml"
    assert capsys.readouterr().err == f"fedhyper: note: {said}\n"
    Path("digits.toml").write_text("seed = 3\n")
    other = fails(capsys, 4, "run", "digits.toml", "rounds=1")
    assert "fedhyper: digits.toml: runs/digits/base holds a run of another config: " in other
    assert "seed (3, not 0)" in other


def test_an_experiment_whose_runs_are_beside_it(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    for _ in range(2):
        assert call("run", "digits", "method=fedavg", "rounds=1", "--out", "digits", "--no-report", "--quiet") == 0
    Path("other").mkdir()
    assert "other" in fails(capsys, 2, "run", "other")


def test_a_repeated_run_is_named_after_its_run(toml: str) -> None:
    assert call("run", toml, "seed=3", "rounds=1", "--no-report", "--quiet") == 0
    assert call("run", "runs/tiny/seed=3/config.toml", "--no-report", "--quiet") == 0
    assert Path("runs/tiny-seed=3/base/summary.json").is_file()


def test_report_of_a_run(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    pytest.importorskip("altair")
    assert call("run", toml) == 0
    assert "report: runs/tiny/base/report.html" in capsys.readouterr().out
    assert "<html" in Path("runs/tiny/base/report.html").read_text("utf-8")
    assert call("report", "runs", "-o", "page.html") == 0
    assert capsys.readouterr().out == "page.html\n"
    assert call("report", "runs", "--table", "csv") == 0
    assert "fedavg" in capsys.readouterr().out
    assert not Path("report.html").exists()
    assert call("report", "runs", "-o", "both.html", "--figures", "figures") == 0
    assert "both.html\n" in capsys.readouterr().out
    assert "<html" in Path("both.html").read_text("utf-8")
    assert Path("figures/accuracy-by-round.svg").is_file()
    assert call("report", "runs", "--table", "csv", "--figures", "figures", "-o", "both.html") == 0
    table = capsys.readouterr()
    assert len(table.out.splitlines()) == 2, "a table goes into a file: what was written is said on stderr"
    assert "accuracy-by-round.svg\n" in table.err
    assert call("report", "runs") == 0
    assert Path("report.html").is_file()


def test_a_missing_report_is_no_failure(
    capsys: pytest.CaptureFixture[str], toml: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'altair'", name="altair")

    monkeypatch.setattr("fedhyper.lab.results.report.write_report", absent)
    assert call("run", toml) == 0
    assert "pip install 'fedhyper[report]'" in capsys.readouterr().err


def test_partition(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("partition", toml, "partition.kind=shards") == 0
    out = capsys.readouterr().out
    assert "1,437 examples, 6 clients, shards" in out
    assert call("partition", toml, "clients=2", "privacy.noise=0.5", "--json") == 0, (
        "who takes part in a round is no matter here"
    )
    assert json.loads(capsys.readouterr().out)["clients"] == 2
    assert call("partition", toml, "--json") == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 6


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow", "trackio"])
@pytest.mark.parametrize("command", [("run",), ("sweep", "seed=0..1")], ids=["run", "sweep"])
def test_a_tracker_that_is_not_installed(
    capsys: pytest.CaptureFixture[str],
    toml: str,
    monkeypatch: pytest.MonkeyPatch,
    tracker: str,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    name, *rest = command
    said = fails(capsys, 2, name, toml, *rest, "--track", tracker)
    assert f"{tracker} is not installed; run pip install '.[{tracker}]' in the clone, or pip install 'fedhyper[" in said


def test_a_tracker_that_is_not_known(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert "--track wandbb is not known; did you mean 'wandb'?" in fails(capsys, 2, "run", toml, "--track", "wandbb")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("run", toml, "rounds=0", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(toml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "default_out", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", toml])


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("typer", "sim", ["--help"]),
        ("pydantic", "sim", ["run", "tiny.toml"]),
        ("torch", "sim", ["run", "tiny.toml"]),
        ("numpy", "sim", ["data", "list"]),
        ("altair", "report", ["report", "runs"]),
    ],
)
def test_a_missing_extra_is_a_hint(toml: str, package: str, extra: str, arguments: list[str]) -> None:
    if package == "altair":
        run_experiment(make_config({"rounds": 1, "clients": 10}), Path("runs"))
    script = f"import sys; sys.modules[{package!r}] = None; from fedhyper.lab.cli import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'fedhyper[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_clients_without_torch_is_a_hint() -> None:
    script = "import sys; sys.modules['torch'] = None; from fedhyper.client import HyperSGD"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "fedhyper.client.HyperSGD needs torch, which is not installed; "
        "pip install '.[sim]' in the clone, or pip install 'fedhyper[sim]' if it came from PyPI"
    )


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys\nfrom fedhyper.lab.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'altair', 'sklearn', 'pooch', 'flwr'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy []\n")


def test_a_run_imports_no_more_than_it_needs(toml: str) -> None:
    script = (
        "import sys\nfrom fedhyper.lab.cli import main\n"
        "try:\n    main(['run', 'tiny.toml', '--quiet', '--no-report'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch._dynamo', 'altair', 'pooch', 'flwr', 'rich', 'requests', 'pandas'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("heavy []\n"), done.stdout + done.stderr


def test_a_reader_that_goes_away(toml: str) -> None:
    command = f"{sys.executable} -m fedhyper.lab.cli run {toml} rounds=2000 --no-report | head -n 3"
    started = time.monotonic()
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 3
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 60


# --- what a person sees --------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed(toml: str, closed: str) -> None:
    for command in ("methods", f"run {toml} rounds=1 --no-report --out {len(closed)}"):
        line = f"{sys.executable} -m fedhyper {command} {closed}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [json.loads(line)["round"] for line in Path(f"{len(closed)}/metrics.jsonl").read_text().splitlines()] == [1]


@pytest.mark.parametrize("out", [".", "", "/"])
def test_a_report_needs_a_name(capsys: pytest.CaptureFixture[str], toml: str, out: str) -> None:
    assert call("run", toml, "rounds=1", "--out", "one", "--no-report", "--quiet") == 0
    assert f"{out or '.'}: Is a directory" in fails(capsys, 74, "report", "one", "-o", out)


def test_a_page_replaces_a_page_and_nothing_else(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("run", toml, "rounds=1", "--out", "one", "--no-report", "--quiet") == 0
    assert f"--out {toml} exists and is no page" in fails(capsys, 2, "report", "one", "--table", "md", "-o", toml)
    assert Path(toml).read_text() == TINY
    for _ in range(2):
        assert call("report", "one", "-o", "page") == 0


def test_a_suffix_replaces_the_optimizer_that_a_method_has(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("methods", "fedavgm+adam") == 0
    assert "fedavgm+adam: adam on the server, in place of server momentum\n" in capsys.readouterr().out
    assert call("methods", "fedprox+adam") == 0
    assert "fedprox+adam: a proximal term on each client; adam on the server\n" in capsys.readouterr().out


def test_a_command_without_json_does_not_speak_of_it(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    for command in (["demo"], ["reproduce"], ["data", "fetch"]):
        assert call(*command, "--help") == 0
        assert "json" not in capsys.readouterr().out.lower()


def test_the_command_that_comes_next_can_be_pasted(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("new", "we ird") == 0
    assert capsys.readouterr().out.endswith("next: fedhyper run 'we ird.toml'\n")
    assert call("flower", "new", "my app") == 0
    assert capsys.readouterr().out.endswith("next: cd 'my app' && flwr run . --stream\n")


@pytest.mark.parametrize("width", [30, 40, 60, 70, 80])
def test_a_narrow_screen_shows_fewer_columns_and_cuts_none(tmp_path: Path, width: int) -> None:
    from rich.console import Console

    run_experiment(make_config({"rounds": 1, "clients": 10, "method": "fedavg"}), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    screen = Console(file=io.StringIO(), width=width)
    screen.print(round_table([record | {"local_lr": 0.0001234, "global_lr": 0.0003123, "train_loss": 12.35}], width))
    headings, row = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert row.split()[:4] == ["1", *percent(record["accuracy"]).split(), "12.35"]
    assert "…" not in headings + row
    assert ("local rate" in headings) == (width >= 50)


def test_words_for_numbers() -> None:
    assert percent(-1.8e57) == "-1.8e+59 %"
    assert [duration(s) for s in (0, 7.26, 59, 200, 7500)] == ["0.0 s", "7.3 s", "59 s", "3 min 20 s", "2 h 05 min"]
    assert (percent(0.7125), percent(None), number(0.00012345), number(None)) == ("71.25 %", "-", "0.0001234", "-")


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1e-4, 1e-2, 1.0], log=True) == "▁▅█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([None, float("nan")]) == ""
    assert len(sparkline(range(100), width=10)) == 10
    assert sparkline([9, *range(8)], width=8) == "▁▂▃▄▅▆▇█", "the oldest is cut off, never the newest"


def test_a_run_of_a_config_toml_is_called_after_its_directory(toml: str) -> None:
    Path("mine").mkdir()
    Path(toml).rename("mine/config.toml")
    assert call("run", "mine/config.toml", "rounds=1", "--quiet", "--no-report") == 0
    assert Path("runs/mine/base/summary.json").is_file()


@pytest.mark.parametrize(
    ("method", "says"), [("fedhyper", "finding the rate, 0.0 s so far"), ("fedavg", "0.0 s so far")]
)
def test_a_terminal_shows_what_the_first_round_is_about(tmp_path: Path, method: str, says: str) -> None:
    from rich.console import Console

    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Run(make_config({"rounds": 3, "clients": 10, "method": method}), tmp_path / "run") as run:
        run.begin()
        live = LiveTable(screen)
        live.start(run)
        live.end(run, run.summary)
    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert f"round 1 of 3: {says}" in drawn
    assert "a round," not in drawn
    assert "local rate" not in drawn


def test_displays(tmp_path: Path) -> None:
    from rich.console import Console

    hostile = "fed\x1b[31mavg"
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    config = make_config({"rounds": 2, "clients": 10, "eval_every": 1})
    run_experiment(config, tmp_path / "\x1b[2J", display=(live := LiveTable(screen)))
    live.note(hostile)
    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "round 2 of 2" in drawn
    assert "local rate" in drawn
    assert "\x1b[31m" not in drawn
    assert "\x1b[2J" not in drawn
    plain = io.StringIO()
    run_experiment(config, tmp_path / "b\nc", display=PlainLines(plain))
    assert plain.getvalue().isascii() or "\ufffd" in plain.getvalue()
    assert plain.getvalue().count("\n") == 6
    assert plain.getvalue().splitlines()[1].startswith("trains ")
    assert isinstance(make_display(out=io.StringIO()), PlainLines)
    assert isinstance(make_display(as_json=True, quiet=True), JsonLines)


@pytest.mark.slow
def test_demo(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    started = time.monotonic()
    assert call("demo") == 0
    assert time.monotonic() - started < 60
    out = capsys.readouterr().out
    assert "FedAvg starts from 0.01, 100 times too small; FedHyper is given none" in out
    rates = [" ".join(line.split()) for line in out.splitlines() if re.search(r" (given|found) \d", line)]
    starts = ("FedAvg given 0.01 ", "FedHyper found 0.", "FedAvg, tuned given 1 ")
    assert all(line.startswith(start) for line, start in zip(rates, starts, strict=True))
    assert "report: runs/demo/report.html" in out
    assert "Next" in out


@pytest.mark.parametrize("out", [Path("d"), None])
def test_a_demo_that_was_interrupted_goes_on(toml: str, monkeypatch: pytest.MonkeyPatch, out: Path | None) -> None:
    place, step = out or Path("runs/demo"), demo.Run.step

    def interrupted(run: Any, signals: Any) -> Any:
        record = step(run, signals)
        if record["round"] == 2 and run.config.method == "fedhyper":  # the third run has one round less
            signals.received = signal.SIGINT
        return record

    monkeypatch.setitem(demo.SETTINGS, "rounds", 3)
    monkeypatch.setattr(demo.Run, "step", interrupted)
    with pytest.raises(Interrupted, match="the same command goes on"):  # main would end this process, too
        demo.run_demo(out, quiet=True, report=False)
    monkeypatch.setattr(demo.Run, "step", step)
    assert demo.run_demo(out, report=False) == place
    for name in ("fedavg", "fedhyper", "fedavg-tuned"):
        summary = json.loads((place / name / "summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("finished", 3)
    # without --out a finished one stays, and the next has a new name
    assert demo.run_demo(out, quiet=True, report=False) == (out or Path("runs/demo-2"))


def test_a_demo_does_not_write_among_other_files(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("not ours")
    assert "thesis is not empty and holds no demo" in fails(capsys, 2, "demo", "--out", "thesis")
    assert f"{toml} is a file" in fails(capsys, 2, "demo", "--out", toml)
    assert [path.name for path in Path("thesis").iterdir()] == ["chapter.tex"]


def test_demo_without_report(capsys: pytest.CaptureFixture[str], toml: str) -> None:
    assert call("demo", "--no-report", "--out", "d") == 0
    finals = [json.loads((Path("d") / name / "summary.json").read_text()) for name in ("fedavg", "fedhyper")]
    assert finals[1]["final_accuracy"] > finals[0]["final_accuracy"] + 0.05
