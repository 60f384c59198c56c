"""A run directory: what is in it, that a run is a function of its config, and what becomes of it in bad times."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fedhyper.errors import CheckpointRefused, StorageError, TrainingStopped, UserError
from fedhyper.lab.config.identity import identity
from fedhyper.lab.config.model import Config, make_config
from fedhyper.lab.running import directory as runfiles
from fedhyper.lab.running import interrupt
from fedhyper.lab.running.build import make_simulation, validation_set
from fedhyper.lab.running.directory import read_config
from fedhyper.lab.running.interrupt import Interrupted
from fedhyper.lab.running.progress import Record, Silent
from fedhyper.lab.running.run import Run, run_experiment
from fedhyper.lab.running.words import closing, title
from fedhyper.sim.simulation import Simulation
from fedhyper.storage import checkpoint
from fedhyper.storage.files import read_json

TINY: dict[str, Any] = {
    "task": "digits",
    "rounds": 6,
    "clients": 8,
    "clients_per_round": 4,
    "batch_size": 16,
    "local_lr": 0.1,
    "eval_every": 1,
    "checkpoint_every": 2,
}
RECORD = {
    "round", "global_lr", "local_lr", "local_lr_min", "local_lr_max", "hypergrad", "cosine", "update_norm",
    "train_loss", "test_loss", "accuracy", "seconds_train", "seconds_aggregate", "seconds_evaluate",
    "bytes_up", "bytes_down", "clients_used", "clients_rejected", "reject_reasons", "rollback",
}  # fmt: skip


def tiny(**changes: Any) -> Config:
    return make_config(TINY | changes)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]


def fingerprint(out: Path) -> str:
    """SHA-256 of the final weights and of metrics.jsonl without its timings."""
    summary = read_json(out / "summary.json")
    assert summary is not None
    timeless = [{k: v for k, v in r.items() if not k.startswith("seconds")} for r in records(out)]
    weights = (out / "weights.safetensors").read_bytes()
    return hashlib.sha256(json.dumps([summary["weights_sha256"], timeless]).encode() + weights).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_experiment(tiny(), out, workers=1)
    return out


def copy(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


class StopAfter(Silent):
    """A listener under which a run dies, as from a bug, after some round."""

    def __init__(self, t: int) -> None:
        self.t = t

    def round(self, run: Run, record: Record) -> None:
        if record["round"] == self.t:
            raise ZeroDivisionError


def broken(out: Path, t: int, **changes: Any) -> Path:
    with pytest.raises(ZeroDivisionError):
        run_experiment(tiny(**changes), out, display=StopAfter(t))
    return out


# --- what is in it -------------------------------------------------------------------------------------------


def test_the_files(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        ".lock", "checkpoint", "config.toml", "env.json", "metrics.jsonl", "partition.json", "summary.json",
        "weights.safetensors",
    }  # fmt: skip
    assert [path.name for path in sorted((whole / "checkpoint").iterdir())] == [
        "round-0000004.ckpt",
        "round-0000006.ckpt",
    ]
    known = read_config(whole)
    assert known is not None
    assert known.values() == tiny().values()
    assert [set(record) for record in records(whole)] == [RECORD | {"start_trials"}, *[RECORD] * 5]
    assert [record["round"] for record in records(whole)] == [1, 2, 3, 4, 5, 6]


def test_the_summary(whole: Path) -> None:
    summary, lines = read_json(whole / "summary.json"), records(whole)
    assert summary is not None
    assert summary["status"] == "finished"
    assert summary["rounds"] == 6
    assert summary["final_accuracy"] == lines[-1]["accuracy"]
    assert summary["best_accuracy"] == max(line["accuracy"] for line in lines)
    assert summary["final_loss"] == lines[-1]["test_loss"]
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in lines)
    assert summary["target_accuracy"] is summary["rounds_to_target"] is summary["seconds_to_target"] is None
    seconds = sum(line[f"seconds_{part}"] for line in lines for part in ("train", "aggregate", "evaluate"))
    assert summary["seconds"] == pytest.approx(seconds)
    assert summary["start_trials"] == lines[0]["start_trials"]
    assert summary["start_seconds"] == pytest.approx(lines[0]["seconds_train"])


def test_what_a_person_reads_claims_no_rate_that_is_not_used(whole: Path, tmp_path: Path) -> None:
    summary = read_json(whole / "summary.json")
    assert summary is not None
    assert "finds its rates" in title(tiny())
    assert "local_lr" not in title(tiny())
    assert f"and {summary['start_trials']} extra local rounds to find the rate" in closing(tiny(), summary)
    fedavg = tiny(method="fedavg", rounds=1, local_optimizer="adam")
    assert "4 of 8 adam clients a round · local_lr 0.1 · global_lr 1" in title(fedavg)
    assert "find the rate" not in closing(fedavg, run_experiment(fedavg, tmp_path / "run"))


def test_the_environment_and_the_partition(whole: Path) -> None:
    env, partition = read_json(whole / "env.json"), read_json(whole / "partition.json")
    assert env is not None
    assert partition is not None
    versions = {"fedhyper", "python", "torch", "numpy"}
    assert versions | {"platform", "machine", "cpu_count", "git", "rule", "started", "imports", "engine"} | {
        "begun_with_rounds"
    } == set(env)
    assert env["engine"] == "simulator"
    assert env["torch"]
    assert partition["clients"] == 8
    assert sum(partition["sizes"]) == 1437


def test_the_weights_load_into_a_plain_model(whole: Path) -> None:
    import torch
    from safetensors.torch import load

    from fedhyper.sim.data.tasks import load_task
    from fedhyper.sim.models import make_model

    task = load_task("digits")
    model = make_model("logistic", task.shape, task.classes, seed=9)
    model.load_state_dict(load((whole / "weights.safetensors").read_bytes()))
    with torch.no_grad():
        accuracy = (model(task.test_x).argmax(1) == task.test_y).double().mean().item()
    assert accuracy == pytest.approx(records(whole)[-1]["accuracy"])


def test_evaluation_every_n_rounds_and_at_the_end(tmp_path: Path) -> None:
    run_experiment(tiny(eval_every=4, rounds=6, client_metrics=True), tmp_path / "run")
    lines = records(tmp_path / "run")
    assert [line["round"] for line in lines if line["accuracy"] is not None] == [4, 6]
    assert [len(line.get("client_accuracy", ())) for line in lines] == [0, 0, 0, 8, 0, 8]


# --- a function of its config --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_do_not_matter(whole: Path, tmp_path: Path, workers: int) -> None:
    run_experiment(tiny(), tmp_path / "run", workers=workers)
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_workers_do_not_matter_to_a_network(tmp_path: Path) -> None:
    for workers in (1, 2, 4):
        config = tiny(model="cnn", method="fedhyper-g+cl", rounds=2)
        run_experiment(config, tmp_path / str(workers), workers=workers)
    assert len({fingerprint(tmp_path / str(workers)) for workers in (1, 2, 4)}) == 1


@pytest.mark.parametrize("every", [0, 1, 1000])
def test_checkpoints_do_not_matter(whole: Path, tmp_path: Path, every: int) -> None:
    run_experiment(tiny(checkpoint_every=every), tmp_path / "run")
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_the_seed_does(whole: Path, tmp_path: Path) -> None:
    run_experiment(tiny(seed=1), tmp_path / "run")
    assert fingerprint(tmp_path / "run") != fingerprint(whole)


METHODS = ("fedhyper", "fedhyper-g", "fedhyper-sl", "fedhyper-g+cl", "fedadam", "fedexp", "fedavgm", "decay-sl")


@pytest.mark.parametrize("method", METHODS)
def test_extended_equals_never_stopped(tmp_path: Path, method: str) -> None:
    # fedhyper looks as far ahead as the run goes, and sees one of 24 rounds or fewer to its end
    first, *later = (25, 26, 28) if method == "fedhyper" else (1, 4, 7)
    run_experiment(tiny(method=method, rounds=later[-1]), tmp_path / "whole")
    for t in (first, *later):
        run_experiment(tiny(method=method, rounds=t), tmp_path / "parts", resume=t > first)
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize(
    ("method", "begun", "rounds", "told"),
    [("fedhyper", 3, 5, True), ("fedhyper", 24, 25, True), ("fedhyper", 25, 26, False), ("fedavg", 3, 5, False)],
)
def test_a_short_run_that_is_extended_says_that_it_has_bits_of_its_own(
    tmp_path: Path, method: str, begun: int, rounds: int, told: bool
) -> None:
    notes: list[str] = []
    listener = Silent()
    listener.note = notes.append  # type: ignore[method-assign]
    broken(tmp_path / "run", 2, method=method, rounds=begun)
    summary = run_experiment(tiny(method=method, rounds=rounds), tmp_path / "run", resume=True, display=listener)
    assert [f"begun with rounds = {begun}, for which it chose its rate" in note for note in notes] == [True] * told
    assert summary.get("begun_with_rounds") == (begun if told else None)
    assert read_json(tmp_path / "run" / "summary.json") == summary
    again = run_experiment(tiny(method=method, rounds=rounds), tmp_path / "run", resume=True)
    assert again.get("begun_with_rounds") == summary.get("begun_with_rounds")


@pytest.mark.parametrize("t", [1, 2, 3, 5])
def test_broken_off_anywhere(whole: Path, tmp_path: Path, t: int) -> None:
    out = broken(tmp_path / "run", t)
    assert len(records(out)) == t
    summary = run_experiment(tiny(), out, resume=True)
    assert fingerprint(out) == fingerprint(whole)
    assert summary["status"] == "finished"


def test_a_finished_run_resumed_does_nothing(whole: Path, tmp_path: Path) -> None:
    out = copy(whole, tmp_path / "run")
    before = (out / "metrics.jsonl").read_bytes()
    summary = run_experiment(tiny(), out, resume=True)
    assert summary["rounds"] == 6
    assert (out / "metrics.jsonl").read_bytes() == before


# --- when to stop --------------------------------------------------------------------------------------------


def test_target(tmp_path: Path) -> None:
    summary = run_experiment(tiny(target_accuracy=0.85, stop_at_target=True, rounds=200), tmp_path / "run")
    lines = records(tmp_path / "run")
    assert summary["status"] == "finished"
    assert summary["rounds_to_target"] == len(lines) < 200
    assert lines[-1]["accuracy"] >= 0.85 > lines[-2]["accuracy"]
    assert 0 < summary["seconds_to_target"] <= summary["seconds"]


def test_patience(tmp_path: Path) -> None:
    summary = run_experiment(tiny(method="fedavg", local_lr=1e-9, patience=3, rounds=200), tmp_path / "run")
    assert summary["rounds"] == 4  # the first evaluation is the best, three more are not better
    assert closing(tiny(rounds=200, patience=3), summary).startswith("finished after round 4 of 200 (patience = 3), ")


def test_the_guard(tmp_path: Path) -> None:
    # w − w_t is multiplied with 1 − local_lr · mu = −10¹² a step: infinite within a round
    config = tiny(method="fedprox", local_lr=1e6, options={"mu": 1e6}, rounds=50, max_bad_rounds=3)
    with pytest.raises(TrainingStopped, match=r"no usable update for 3 rounds.*lower local_lr than 1e\+06") as caught:
        run_experiment(config, tmp_path / "run")
    assert caught.value.exit_code == 3
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary is not None
    assert summary["status"] == "diverged"
    assert [r["clients_used"] for r in records(tmp_path / "run")] == [0, 0, 0]
    assert records(tmp_path / "run")[0]["reject_reasons"] == {"non-finite": 4}
    with pytest.raises(TrainingStopped):
        run_experiment(config, tmp_path / "run", resume=True)


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("local_lr", 0.2),
        ("global_lr", 0.5),
        ("method", "fedavg"),
        ("model", "mlp"),
        ("clients", 9),
        ("clients_per_round", 3),
        ("local_epochs", 2),
        ("local_steps", 3),
        ("batch_size", 8),
        ("weighting", "uniform"),
        ("sampling", "size"),
        ("norm_cap", 2.0),
        ("subset", 1000),
        ("engine", "sequential"),
        ("client_metrics", True),
        ("partition", {"kind": "iid"}),
        ("partition", {"concentration": 0.1}),
        ("options", {"voices": 5}),
    ],
)
def test_another_config_is_refused(whole: Path, tmp_path: Path, key: str, value: Any) -> None:
    out = copy(whole, tmp_path / "run")
    with pytest.raises(CheckpointRefused) as caught:
        run_experiment(tiny(**{key: value, "rounds": 9}), out, resume=True)
    assert caught.value.exit_code == 4
    named = f"{key}.{next(iter(value))}" if isinstance(value, dict) else key
    assert named in str(caught.value)
    assert fingerprint(out) == fingerprint(whole)


@pytest.mark.parametrize(
    ("key", "value"),
    [("rounds", 8), ("eval_every", 3), ("checkpoint_every", 5), ("target_accuracy", 0.5), ("patience", 4)],
)
def test_some_keys_may_change(whole: Path, tmp_path: Path, key: str, value: Any) -> None:
    out = copy(whole, tmp_path / "run")
    run_experiment(tiny(**{key: value}), out, resume=True)
    known = read_config(out)
    assert known is not None
    assert known.values() == tiny(**{key: value}).values()


def test_a_run_that_is_refused_stays_what_it_was(whole: Path, tmp_path: Path) -> None:
    out = copy(whole, tmp_path / "run")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def wider(config: Config, **settings: Any) -> Simulation:  # a plug-in whose default width was changed
        return make_simulation(make_config(config.values() | {"model": "mlp"}), **settings)

    with pytest.raises(CheckpointRefused) as caught:
        run_experiment(tiny(rounds=9, eval_every=3), out, resume=True, make=wider)
    assert "the model had 650 weights when this run began, and has 15,010 now; make the plug-in what it was" in str(
        caught.value
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_what_is_there_is_not_overwritten(whole: Path, tmp_path: Path) -> None:
    out = copy(whole, tmp_path / "run")
    with pytest.raises(UserError, match=r"holds a run \(finished\); continue it with --resume"):
        run_experiment(tiny(), out)
    with pytest.raises(UserError, match=r"holds a run \(running\)"):
        run_experiment(tiny(), broken(tmp_path / "other", 3))
    assert fingerprint(out) == fingerprint(whole)


def test_foreign_places(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("x")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.toml").write_text("")
    (tmp_path / "file").write_text("x")
    for name in ("thesis", "project", "file"):
        for resume in (False, True):
            with pytest.raises(UserError, match="choose another --out"):
                run_experiment(tiny(), tmp_path / name, resume=resume)
    assert os.listdir(tmp_path / "thesis") == ["chapter1.tex"]
    assert os.listdir(tmp_path / "project") == ["config.toml"]
    with pytest.raises(CheckpointRefused, match="nothing to resume"):
        run_experiment(tiny(), tmp_path / "missing", resume=True)
    with pytest.raises(StorageError):
        run_experiment(tiny(), tmp_path / "file" / "below")
    assert not (tmp_path / "missing").exists()


def test_a_run_goes_on_with_the_engine_it_began_with(tmp_path: Path) -> None:
    run_experiment(tiny(rounds=1), tmp_path / "run", engine="flower")
    with pytest.raises(CheckpointRefused, match=r"run of --engine flower, .* --engine simulator; go on"):
        run_experiment(tiny(rounds=2), tmp_path / "run", resume=True)
    run_experiment(tiny(rounds=2), tmp_path / "run", resume=True, engine="flower")
    assert len(records(tmp_path / "run")) == 2
    slow = tiny(rounds=1, engine="sequential")  # the one that has Flower's bits
    run_experiment(slow, tmp_path / "slow", engine="flower")
    run_experiment(slow, tmp_path / "slow", resume=True)


def test_names_that_are_unusual(tmp_path: Path) -> None:
    for name in ("with space", "ünïcödé ✓", "x" * 250, "-rf", "a'b\"c"):
        run_experiment(tiny(rounds=1), tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "with space")
    run_experiment(tiny(rounds=2), tmp_path / "link", resume=True)
    assert len(records(tmp_path / "with space")) == 2


def test_a_killed_start_can_start_again(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoint").mkdir(parents=True)
    (out / ".lock").write_text("99999\n")
    (out / ".config.toml.tmp").write_text("task = ")
    run_experiment(tiny(), out, resume=True)
    assert fingerprint(out) == fingerprint(whole)
    assert not list(out.rglob("*.tmp"))


# --- damage --------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_checkpoint_before_the_damaged_one_is_used(whole: Path, tmp_path: Path) -> None:
    out = broken(tmp_path / "run", 5)
    damage(out / "checkpoint" / "round-0000004.ckpt")
    notes: list[str] = []
    listener = Silent()
    listener.note = notes.append  # type: ignore[method-assign]
    run_experiment(tiny(), out, resume=True, display=listener)
    assert fingerprint(out) == fingerprint(whole)
    assert len(notes) == 1
    assert "round-0000004.ckpt" in notes[0]


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    out = broken(tmp_path / "run", 5)
    before = (out / "metrics.jsonl").read_bytes()
    for path in (out / "checkpoint").iterdir():
        damage(path)
    with pytest.raises(
        CheckpointRefused, match=r"round-0000004.ckpt: the checkpoint is damaged.*to start anew, as run --fresh"
    ):
        run_experiment(tiny(), out, resume=True)
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("every", [0, 2, 100])
@pytest.mark.parametrize("rounds", [6, 9])
def test_a_run_whose_checkpoints_are_gone_is_not_cut_off(tmp_path: Path, every: int, rounds: int) -> None:
    out = tmp_path / "run"
    run_experiment(tiny(checkpoint_every=every), out)
    shutil.rmtree(out / "checkpoint")
    with pytest.raises(CheckpointRefused, match=r"has 6 rounds on record and no checkpoint to go on from.*--fresh"):
        run_experiment(tiny(checkpoint_every=every, rounds=rounds), out, resume=True)
    assert len(records(out)) == 6
    run_experiment(tiny(checkpoint_every=every), out, fresh=True)


@pytest.mark.parametrize(("every", "killed_after"), [(0, 1), (5, 3), (5, 5)])
def test_a_run_killed_before_its_first_checkpoint_begins_again(
    whole: Path, tmp_path: Path, every: int, killed_after: int
) -> None:
    out = broken(tmp_path / "run", killed_after, checkpoint_every=every)
    shutil.rmtree(out / "checkpoint")  # of the round in which the kill came between its line and its checkpoint
    notes: list[str] = []
    listener = Silent()
    listener.note = notes.append  # type: ignore[method-assign]
    run_experiment(tiny(checkpoint_every=every), out, resume=True, display=listener)
    assert fingerprint(out) == fingerprint(whole)
    assert [note.endswith("before its first checkpoint: it begins again") for note in notes] == [True]


def test_a_run_killed_in_its_first_round_says_that_it_begins_again(whole: Path, tmp_path: Path) -> None:
    config = tiny()
    run = Run(config, tmp_path / "run")
    run.begin()
    run.__exit__()
    notes: list[str] = []
    listener = Silent()
    listener.note = notes.append  # type: ignore[method-assign]
    run_experiment(config, tmp_path / "run", resume=True, display=listener)
    assert fingerprint(tmp_path / "run") == fingerprint(whole)
    assert notes == [f"{tmp_path / 'run'} was stopped before its first checkpoint: it begins again"]


@pytest.mark.parametrize(
    "values",
    [{}, {"round": 4}, {"round": 4, "metrics_bytes": -1}, {"round": True, "metrics_bytes": 0}, {"round": 2**63}],
)
def test_a_checkpoint_of_something_else(tmp_path: Path, values: dict[str, Any]) -> None:
    out = broken(tmp_path / "run", 3)
    for path in (out / "checkpoint").iterdir():
        checkpoint.save(path, {}, values)
    with pytest.raises(CheckpointRefused, match="not a checkpoint of a run"):
        run_experiment(tiny(), out, resume=True)


@pytest.mark.parametrize("state", [None, [], [1, 2], {"tensor": "x"}, "x", [[]] * 11])
def test_a_state_that_is_none(tmp_path: Path, state: Any) -> None:
    from fedhyper.lab.config.identity import config_hash

    out = broken(tmp_path / "run", 3)
    size = (out / "metrics.jsonl").stat().st_size
    for path in (out / "checkpoint").iterdir():
        values = {"round": 2, "metrics_bytes": size, "config_hash": config_hash(tiny()), "state": state}
        checkpoint.save(path, {}, values)
    with pytest.raises(CheckpointRefused, match="; delete the directory to start anew"):
        run_experiment(tiny(), out, resume=True)


def test_metrics_that_are_too_short_or_no_metrics(tmp_path: Path) -> None:
    out = broken(tmp_path / "run", 5)
    path = out / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:100])
    with pytest.raises(CheckpointRefused, match=r"metrics.jsonl was cut: .* bytes.*; put it back, or delete"):
        run_experiment(tiny(), out, resume=True)
    path.write_bytes(b"{" * len(content))
    with pytest.raises(CheckpointRefused, match="was changed since its checkpoint; put it back, or delete"):
        run_experiment(tiny(), out, resume=True)


def test_other_data(whole: Path, tmp_path: Path) -> None:
    out = copy(whole, tmp_path / "run")
    partition = read_json(out / "partition.json")
    assert partition is not None
    (out / "partition.json").write_text(json.dumps(partition | {"sha256": "0" * 64}))
    with pytest.raises(
        CheckpointRefused, match=r"partition.json: the data or their split have changed.*; put .*start anew"
    ):
        run_experiment(tiny(rounds=9), out, resume=True)


def test_a_config_of_another_version(whole: Path, tmp_path: Path) -> None:
    out = copy(whole, tmp_path / "run")
    (out / "config.toml").write_text("future_key = 1\n")
    with pytest.raises(
        CheckpointRefused, match=r"future_key.*put the config of this directory's run back, or delete the directory"
    ):
        run_experiment(tiny(), out, resume=True)


# --- the disk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "ftruncate", "open"])
def test_errors_of_the_disk_cost_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """The n-th call fails; whatever n is, the run goes on later to the same bits."""
    real = getattr(os, call)
    out = tmp_path / "run"
    fail_at = {errno.ENOSPC: 3, errno.EIO: 8, errno.EDQUOT: 13, errno.EROFS: 21}[code]
    count = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if str(tmp_path) in str(args[0]) or isinstance(args[0], int):
            count += 1
            if count == fail_at:
                if call == "write":
                    real(args[0], bytes(args[1])[:10])  # a disk fills up in the middle of a line
                raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    raised: StorageError | None = None
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            run_experiment(tiny(), out)
        except StorageError as error:
            raised = error
    if raised is None:
        assert count < fail_at  # there were not that many calls
    else:
        assert raised.exit_code == 74
        assert os.strerror(code) in str(raised)
        assert "\n" not in str(raised)
    assert not list(out.rglob("*.tmp"))
    if (out / "metrics.jsonl").exists():
        assert all(record["round"] for record in records(out))  # whole lines only
    run_experiment(tiny(), out, resume=True)
    assert fingerprint(out) == fingerprint(whole)
    assert not list(out.rglob("*.tmp"))


# --- one at a time -------------------------------------------------------------------------------------------


def test_two_on_one_directory(tmp_path: Path) -> None:
    first = Run(tiny(), tmp_path / "run")
    with first:
        with pytest.raises(StorageError, match=rf"in use by process {os.getpid()}") as caught:
            run_experiment(tiny(), tmp_path / "run", resume=True)
        assert caught.value.exit_code == 74
        while not first.over:
            first.step()
        first.finish()
    assert run_experiment(tiny(), tmp_path / "run", resume=True)["status"] == "finished"


def test_the_lock_of_the_dead_does_not_hold(tmp_path: Path) -> None:
    out = broken(tmp_path / "run", 3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        held = os.open(out / ".lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(write, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    os.close(read)
    os.close(write)
    with pytest.raises(StorageError, match="in use"):
        run_experiment(tiny(), out, resume=True)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert run_experiment(tiny(), out, resume=True)["status"] == "finished"


# --- signals -------------------------------------------------------------------------------------------------


class Send(Silent):
    """Sends this process a signal after some round."""

    def __init__(self, number: int, t: int) -> None:
        self.number, self.t = number, t

    def round(self, run: Run, record: Record) -> None:
        if record["round"] == self.t:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(whole: Path, tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number), signal.getsignal(signal.SIGALRM)
    with pytest.raises(Interrupted, match="interrupted after round 3 of 6") as caught:
        run_experiment(tiny(), tmp_path / "run", display=Send(number, 3))
    assert caught.value.exit_code == 128 + number
    assert (signal.getsignal(number), signal.getsignal(signal.SIGALRM)) == before
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary is not None
    assert (summary["status"], summary["rounds"]) == ("interrupted", 3)
    assert (tmp_path / "run" / "checkpoint" / "round-0000003.ckpt").exists()
    run_experiment(tiny(), tmp_path / "run", resume=True)
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_a_long_round_is_abandoned(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(interrupt, "GRACE", 0.2)

    def slow(*args: Any, **kwargs: Any) -> Any:
        sim = make_simulation(*args, **kwargs)
        monkeypatch.setattr(sim, "_known_step", lambda: None)  # what fedhyper's start has made is trained again
        real = {"training": sim.engine.train, "evaluation": sim.engine.evaluate}[where]

        def wait(*a: Any, **k: Any) -> Any:
            if sim.round >= 3:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
                time.sleep(60)
            return real(*a, **k)

        monkeypatch.setattr(sim.engine, {"training": "train", "evaluation": "evaluate"}[where], wait)
        return sim

    started = time.monotonic()
    with pytest.raises(Interrupted) as caught:
        run_experiment(tiny(checkpoint_every=1000), tmp_path / "run", make=slow)  # so the only save is that of the end
    assert time.monotonic() - started < 5
    assert caught.value.exit_code == 143
    assert len(records(tmp_path / "run")) == 3  # the round in which it waited is not there, wherever it waited
    assert (tmp_path / "run" / "checkpoint" / "round-0000003.ckpt").exists()
    run_experiment(tiny(), tmp_path / "run", resume=True)
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_in_a_thread_there_are_no_signals_to_wait_for(whole: Path, tmp_path: Path) -> None:
    thread = threading.Thread(target=run_experiment, args=(tiny(), tmp_path / "run"))
    thread.start()
    thread.join()
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_whole_files_are_flushed_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def noted(*args: Any, _real: Any = real, _name: str = name) -> Any:
            calls.append(_name)
            return _real(*args)

        monkeypatch.setattr(os, name, noted)
    runfiles.replace(tmp_path / "x", b"content")
    assert calls == ["write", "fsync", "replace", "fsync"]


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def half(descriptor: int, content: bytes) -> int:
        if len(content) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, bytes(content)[: len(content) // 2])

    with runfiles.RunDirectory(tmp_path / "run") as files:
        files.open_metrics(keep=0)
        files.append_metrics({"round": 1})
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(StorageError):
                files.append_metrics({"round": 2, "accuracy": 0.5})
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before == b'{"round": 1}\n'


# --- data held out by the server -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_what_is_held_out_is_trained_on_by_nobody_and_decides_when_to_stop(tmp_path: Path, model: str) -> None:
    config = tiny(validation=0.2, model=model, eval_every=1, target_accuracy=0.3)
    sim = make_simulation(config)
    held = validation_set(config, sim.task)
    n = len(sim.task.train_x)
    assert n == 1437
    assert held.sizes.tolist() == [287]
    assert sorted([*sim.partition.indices, *held.indices]) == list(range(n)), "nobody's twice, and none is lost"
    sim.close()
    summary = run_experiment(config, tmp_path / "run")
    lines = records(tmp_path / "run")
    judged = [line["validation_accuracy"] for line in lines]
    best = max(range(len(judged)), key=lambda i: judged[i])
    assert all(0 <= value <= 1 for value in judged)
    assert len({round(287 * value, 6) % 1 for value in judged} - {0.0, 1.0}) == 0, "whole examples of those held out"
    assert summary["best_accuracy"] == lines[best]["accuracy"], "chosen on what was held out, told of the test set"
    reached = [line["round"] for line in lines if line["validation_accuracy"] >= 0.3]
    assert summary["rounds_to_target"] == (reached[0] if reached else None)


def test_natural_clients_lose_what_is_held_out() -> None:
    import numpy as np
    import torch

    from fedhyper.sim.data.tasks import Task

    x, y = torch.arange(20.0).reshape(10, 2), torch.zeros(10, dtype=torch.int64)
    task = Task("t", x, y, x, y, classes=1, groups=(np.arange(4), np.arange(4, 10)))
    held = task.hold_out(3, seed=0)
    assert held.groups is not None
    assert [len(group) for group in held.groups][-1] == 3
    assert sorted(np.concatenate(held.groups)) == list(range(10))
    assert sorted(held.train_x[:, 0].tolist()) == x[:, 0].tolist(), "the same examples, the last three held out"
    for before, after in zip(task.groups or (), held.groups, strict=False):
        assert set(held.train_x[after, 0].tolist()) <= set(x[before, 0].tolist()), "nobody gets another's examples"


def test_a_validation_set_continues_and_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    whole = run_experiment(tiny(validation=0.1, method="fedhyper-g"), tmp_path / "whole")
    run_experiment(tiny(validation=0.1, method="fedhyper-g", rounds=2), tmp_path / "parts")
    parts = run_experiment(tiny(validation=0.1, method="fedhyper-g"), tmp_path / "parts", resume=True)
    assert parts["weights_sha256"] == whole["weights_sha256"]
    with pytest.raises(CheckpointRefused, match="validation"):
        run_experiment(tiny(method="fedhyper-g", rounds=9), tmp_path / "parts", resume=True)
    assert "validation" not in identity(tiny()), "runs from before there was such a key go on"
