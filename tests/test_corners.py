"""What a run finds changed when it continues, and what used to end in a traceback or in all of the memory."""

from __future__ import annotations

import copy
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhyper.errors import CheckpointRefused, DataError, StorageError
from fedhyper.lab.config.model import make_config
from fedhyper.lab.running.run import run_experiment
from fedhyper.sim.data import files as data
from fedhyper.storage import checkpoint
from fedhyper.storage.files import read_json, write_new

TINY: dict[str, Any] = {"rounds": 4, "clients": 8, "clients_per_round": 4, "batch_size": 16, "checkpoint_every": 2}


def tiny(**changes: Any) -> Any:
    return make_config(TINY | changes)


@pytest.fixture(scope="module", params=["fedhyper", "fedhyper-g+adam", "fedhyper-g+sl"])
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run of four rounds, to be continued."""
    out = tmp_path_factory.mktemp("half") / "run"
    run_experiment(tiny(method=request.param), out, workers=1)
    return request.param, out


def refusal(config: Any, out: Path) -> str:
    with pytest.raises(CheckpointRefused) as caught:
        run_experiment(config, out, resume=True, workers=1)
    assert caught.value.exit_code == 4
    return str(caught.value)


# Other data, other metrics -------------------------------------------------------------------------------------------


def test_the_data_are_written_down_and_other_data_are_refused(
    half: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, run = half
    out = shutil.copytree(run, tmp_path / "run")
    known = read_json(out / "partition.json")
    assert known is not None
    assert set(known["data"]) == {"train_x", "train_y", "test_x", "test_y"}
    known["data"]["train_x"] = "0" * 64
    (out / "partition.json").write_text(json.dumps(known))
    assert "train_x of the data changed since the run began" in refusal(tiny(method=method, rounds=6), out)


def test_replaced_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels, and so the split, are the same; every image is another one."""
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    for file in data.dataset("mnist").files:
        array = np.zeros(file.shape, np.uint8) if len(file.shape) > 1 else (np.arange(file.shape[0]) % 10).astype("u1")
        write_idx(tmp_path / "mnist" / file.path.removesuffix(".gz"), array)
    config = tiny(task="mnist", model="logistic", rounds=1, subset=400)
    command = [sys.executable, "-m", "fedhyper", "run", "--out", str(tmp_path / "run"), "--no-report", "--quiet"]
    toml = tmp_path / "mnist.toml"
    toml.write_text(
        'task = "mnist"\nmodel = "logistic"\nsubset = 400\nclients = 8\nclients_per_round = 4\nrounds = 1\n'
    )
    assert subprocess.run([*command, str(toml)], capture_output=True, check=False).returncode == 0
    images = next(file for file in data.dataset("mnist").files if len(file.shape) > 1)
    write_idx(tmp_path / "mnist" / images.path.removesuffix(".gz"), rng.integers(0, 255, images.shape).astype("u1"))
    done = subprocess.run([*command, str(toml), "rounds=2", "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert f"{images.path} of the data changed" in done.stderr
    assert config.task == "mnist"


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(head + array.tobytes())


def test_metrics_that_were_changed_are_noticed(half: tuple[str, Path], tmp_path: Path) -> None:
    method, run = half
    out = shutil.copytree(run, tmp_path / "run")
    metrics = out / "metrics.jsonl"
    lines = metrics.read_bytes()
    place = lines.index(b'"global_lr": 1') + len(b'"global_lr": ')
    metrics.write_bytes(lines[:place] + b"9" + lines[place + 1 :])  # as long, and as good JSON, as before
    assert "was changed since its checkpoint" in refusal(tiny(method=method, rounds=6), out)


# Forged states -------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the leaves of a JSON value are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path
    for key, item in items:
        yield from places(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return changed


def outcome(config: Any, run: Path, out: Path, tensors: dict[str, Any], values: dict[str, Any]) -> str:
    """What becomes of a continuation from a checkpoint with this content, and a right digest."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(run, out)
    for path in (out / "checkpoint").glob("*.ckpt"):
        if path.name != "round-0000004.ckpt":
            path.unlink()
    checkpoint.save(out / "checkpoint" / "round-0000004.ckpt", tensors, values)
    try:
        run_experiment(config, out, resume=True, workers=1)
    except CheckpointRefused:
        return "refused"
    return "went on"


def test_a_forged_state_is_refused_and_never_a_traceback(
    half: tuple[str, Path], tmp_path: Path, tried: Callable[[int], None]
) -> None:
    """Every leaf replaced by what it is not: a word, a list, an object, nothing. A traceback would fail the test."""
    method, run = half
    config = tiny(method=method, rounds=5)
    tensors, values = checkpoint.load(run / "checkpoint" / "round-0000004.ckpt")
    state = values["state"]
    for path in places(state):
        for new in ("word", [], {}, None, {"tensor": "nowhere"}, {"tensor": 3}):
            forged = values | {"state": put(state, path, new)}
            assert outcome(config, run, tmp_path / "run", tensors, forged) == "refused", (path, new)
            tried(1)


def test_forged_tensors_are_refused(half: tuple[str, Path], tmp_path: Path, tried: Callable[[int], None]) -> None:
    method, run = half
    config = tiny(method=method, rounds=5)
    tensors, values = checkpoint.load(run / "checkpoint" / "round-0000004.ckpt")
    for name, array in tensors.items():
        wrong = [array.astype(np.int16), array[: array.size // 2], np.stack([array, array])]
        if array.dtype == np.float32 and array.size:
            wrong += [np.full_like(array, np.nan), np.where(np.arange(array.size) == 3, np.inf, array), array > 0]
        for new in wrong:
            if new.size != array.size or new.dtype != array.dtype or not np.array_equal(new, array):
                assert outcome(config, run, tmp_path / "run", tensors | {name: new}, values) == "refused", (name, new)
                tried(1)
        less = {key: value for key, value in tensors.items() if key != name}
        assert outcome(config, run, tmp_path / "run", less, values) == "refused"


@pytest.mark.parametrize("rate", [0.0, -0.1, 1e300, {"$float": "nan"}, {"$float": "inf"}])
def test_a_rate_that_is_none_is_refused(half: tuple[str, Path], tmp_path: Path, rate: Any) -> None:
    method, run = half
    tensors, values = checkpoint.load(run / "checkpoint" / "round-0000004.ckpt")
    loop = values["state"][0]
    plan = 5  # LoopState: round, now, good, mean, averaged, plan
    for i in (0, 1):  # global_lr, local_lr
        forged = values | {"state": put(values["state"], (0, plan, i), rate)}
        assert outcome(tiny(method=method, rounds=5), run, tmp_path / "run", tensors, forged) == "refused"
    assert loop[0] == 4
    for count in (-1, 2.5, True, 2**70):
        forged = values | {"state": put(values["state"], (0, 4), count)}
        assert outcome(tiny(method=method, rounds=5), run, tmp_path / "run", tensors, forged) == "refused"


# Memory --------------------------------------------------------------------------------------------------------------


def limited(gigabytes: float) -> tuple[int, int]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + int(gigabytes * 2**30), before[1]))
    return before


def test_a_sparse_label_file_of_gigabytes_is_refused_in_a_line(tmp_path: Path) -> None:
    labels = next(file for file in data.dataset("mnist").files if len(file.shape) == 1)
    path = tmp_path / "mnist" / labels.path.removesuffix(".gz")
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(4 << 30)
    before = limited(1)
    try:
        status = data.file_status(path.parent, labels)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert status.state == "corrupt"
    assert "more than the expected" in (status.problem or "")


def test_a_bomb_in_place_of_a_text_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    deflate = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    block = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_FULL_FLUSH)  # begins and ends on a byte, alone
    path.write_bytes(gzip.compress(b"")[:10] + block * 32 + b"\x03\x00" + bytes(8))  # 2 GB; nobody comes to its sum
    text = data.dataset("shakespeare").files[0]
    before = limited(0.5)
    try:
        with pytest.raises(DataError, match="more than the expected"):
            data.read_content(path, 1 << 26)
        assert data.file_status(tmp_path, text).state == "corrupt"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# The command line ----------------------------------------------------------------------------------------------------


def command(line: str, tmp_path: Path) -> tuple[int, str]:
    script = f"cd {tmp_path}; {line.replace('fedhyper', f'{sys.executable} -m fedhyper')}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("what", ["run tiny.toml --out run"])  # one that goes on writing: what fits a pipe is no error
def test_output_that_nobody_can_read(tmp_path: Path, what: str) -> None:
    (tmp_path / "tiny.toml").write_text("rounds = 30\nclients = 8\nclients_per_round = 4\n")
    code, said = command(f"fedhyper {what} > /dev/full", tmp_path)
    assert code == 74
    assert "the output cannot be written: No space left on device" in said
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert command(f"fedhyper {what} | head -n 1", tmp_path)[0] == 141


@pytest.mark.parametrize("more", ["", "--resume"])
def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, more: str) -> None:
    (tmp_path / "tiny.toml").write_text("rounds = 1\nclients = 8\nclients_per_round = 4\n")
    code, said = command(f"fedhyper run tiny.toml {more} --out {'x' * 256}", tmp_path)
    assert code == 74
    assert "File name too long" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("option", ["hidden=1e9", "hidden=1000000000", "depth=1000000"])
def test_a_model_that_no_memory_holds_is_refused(tmp_path: Path, option: str) -> None:
    (tmp_path / "tiny.toml").write_text('rounds = 1\nmodel = "mlp"\n')
    code, said = command(f"fedhyper run tiny.toml model_options.{option} --out run", tmp_path)
    assert code == 2
    assert len(said.splitlines()) == 1


def test_what_is_no_file_is_written_into_and_stays(tmp_path: Path) -> None:
    """As root, ``report -o /dev/full`` put a page in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_new(pipe, "page")
        assert os.read(reader, 10) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    device = tmp_path / "full"
    device.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        write_new(device, "page")
    assert device.is_symlink()
