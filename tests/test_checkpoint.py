"""The checkpoint file: exact round trips, damage refused, faults survived, kills at any instant."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import random
import signal
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhyper.errors import CheckpointRefused, StorageError
from fedhyper.storage import checkpoint

Tried = Callable[[int], None]
TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "scalar": np.asarray(2.5),
    "empty": np.zeros((0, 3), np.float16),
    "steps": np.asarray([1, -(2**62)]),
    "flags": np.asarray([True, False]),
}
VALUES = {"round": 7, "lr": 0.1 + 0.2, "tiny": 5e-324, "nan": math.nan, "inf": [-math.inf, None, True], "name": "é</x>"}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a
    )


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.ckpt"
    checkpoint.save(path, TENSORS, VALUES)
    tensors, values = checkpoint.load(path)
    assert same(tensors, TENSORS)
    assert math.isnan(values.pop("nan"))
    assert values == {k: v for k, v in VALUES.items() if k != "nan"}
    tensors["weights"][0, 0] = 1.0  # writable, and no view of anything shared
    assert [p.name for p in path.parent.iterdir()] == ["run.ckpt"]


def test_arrays_in_any_memory_order_are_saved_by_value(tmp_path: Path) -> None:
    path = tmp_path / "c"
    whole = np.arange(24.0).reshape(4, 6)
    odd = {"f": np.asfortranarray(whole), "t": whole.T, "s": whole[::2, ::3], "b": whole.astype(">f4")}
    checkpoint.save(path, odd, {})
    tensors, _ = checkpoint.load(path)
    for name, array in odd.items():
        np.testing.assert_array_equal(tensors[name], array)


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", TENSORS, {"x": 1, "y": 2})
    checkpoint.save(tmp_path / "b", TENSORS, {"y": 2, "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("values", [{1: 2}, {"a": [{2: 3}]}, {"a": {1, 2}}, {"a": np.float32(1)}, {"a": b"x"}])
def test_values_that_would_not_come_back_are_an_error_at_once(tmp_path: Path, values: Any) -> None:
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "c", {}, values)
    assert list(tmp_path.iterdir()) == []


def test_mode_is_kept_and_symlinked_temporaries_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {}, {})
    path.chmod(0o640)
    checkpoint.save(path, {}, {"x": 1})
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_name_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / ("x" * 255), TENSORS, {})
    assert same(checkpoint.load(tmp_path / ("x" * 255))[0], TENSORS)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointRefused) as caught:
        checkpoint.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def _mutations(data: bytes, other: bytes, rng: random.Random, count: int) -> Any:
    for _ in range(count):
        kind = rng.choice(["flip", "cut", "zero", "insert", "double", "swap", "splice"])
        i, j = sorted(rng.sample(range(len(data)), 2))
        if kind == "flip":
            yield data[:i] + bytes([data[i] ^ (1 << rng.randrange(8))]) + data[i + 1 :]
        elif kind == "cut":
            yield data[:i]
        elif kind == "zero":
            yield data[:i] + bytes(j - i) + data[j:]
        elif kind == "insert":
            yield data[:i] + rng.randbytes(rng.randrange(1, 40)) + data[i:]
        elif kind == "double":
            yield data[:j] + data[i:]
        elif kind == "swap":
            yield data[:i] + data[j:] + data[i:j]
        else:
            yield data[:i] + other[i:]


def test_no_mutated_file_is_ever_loaded(tmp_path: Path, tried: Tried) -> None:
    a, b, path = tmp_path / "a", tmp_path / "b", tmp_path / "mutant"
    checkpoint.save(a, TENSORS, VALUES)
    checkpoint.save(b, TENSORS | {"weights": TENSORS["weights"] + 1}, VALUES)
    good, other = a.read_bytes(), b.read_bytes()
    cases = 0
    for mutant in _mutations(good, other, random.Random(20261115), 5000):
        if mutant in (good, other):
            continue
        path.write_bytes(mutant)
        refused(path)
        cases += 1
    assert cases > 3500
    tried(cases)


def forged(path: Path, header: bytes, blob: bytes, *, version: int = 1, length: int | None = None) -> Path:
    """A file with a right digest and whatever inside."""
    body = struct.pack("<8sIQ", checkpoint.MAGIC, version, len(header) if length is None else length) + header + blob
    path.write_bytes(body + hashlib.sha256(body).digest())
    return path


def _tensor_file(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + data


FORGERIES = {
    "newer": (b"{}", b"", {"version": 2}),
    "version 0": (b"{}", b"", {"version": 0}),
    "huge length": (b"{}", b"", {"length": 2**63}),
    "length past the end": (b"{}", b"", {"length": 60}),
    "no blob": (b"{}", b"", {}),
    "not JSON": (b"{", _tensor_file({}), {}),
    "JSON NaN": (b'{"a":NaN}', _tensor_file({}), {}),
    "list": (b"[]", _tensor_file({}), {}),
    "tagged float at the top": (b'{"$float":"nan"}', _tensor_file({}), {}),
    "bad tag": (b'{"a":{"$float":"x"}}', _tensor_file({}), {}),
    "bad tag type": (b'{"a":{"$float":{}}}', _tensor_file({}), {}),
    "deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", _tensor_file({}), {}),
    "not UTF-8": (b'{"a":"\xff"}', _tensor_file({}), {}),
    "overlap": (
        b"{}",
        _tensor_file({k: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for k in "ab"}, bytes(4)),
        {},
    ),
    "unknown dtype": (
        b"{}",
        _tensor_file({"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        {},
    ),
    "beyond the data": (
        b"{}",
        _tensor_file({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, bytes(4)),
        {},
    ),
    "blob header too long": (b"{}", struct.pack("<Q", 2**62) + b"{}", {}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_with_a_right_digest_are_refused(tmp_path: Path, name: str) -> None:
    header, blob, options = FORGERIES[name]
    refused(forged(tmp_path / "forged", header, blob, **options))


class _Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_pickles_are_refused_unopened(tmp_path: Path, tried: Tried) -> None:
    marker = tmp_path / "executed"
    bombs = {f"p{protocol}": pickle.dumps(_Bomb(marker), protocol) for protocol in range(6)}
    bombs["object.npy"] = _npy_bomb(marker)
    zipped = tmp_path / "zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", bombs["p2"])
    bombs["model.pt"] = zipped.read_bytes()
    for name, payload in bombs.items():
        path = tmp_path / name
        path.write_bytes(payload)
        refused(path)
        refused(forged(path, b"{}", payload))
        refused(forged(path, payload, _tensor_file({})))
    assert not marker.exists()
    tried(3 * len(bombs))


def _npy_bomb(marker: Path) -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.asarray([_Bomb(marker)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def test_missing_directory_and_empty_file_are_refused(tmp_path: Path) -> None:
    assert "no such" in refused(tmp_path / "none")
    refused(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty")
    (tmp_path / "short").write_bytes(checkpoint.MAGIC)
    assert "cut short" in refused(tmp_path / "short")


ERRNOS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EINTR]


@pytest.mark.parametrize("code", ERRNOS, ids=[errno.errorcode[c] for c in ERRNOS])
def test_an_error_at_every_system_call_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Tried, code: int
) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, TENSORS, {"round": 1})
    old = path.read_bytes()
    calls: list[str] = []
    fail_at = -1

    def faulty(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **kw: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 == fail_at:
                if name == "write":
                    real(args[0], bytes(args[1])[:1])  # a partial write first, as a full disk does
                raise OSError(code, os.strerror(code))
            return real(*args, **kw)

        return call

    for name in ("write", "fsync", "replace", "fchmod"):
        monkeypatch.setattr(os, name, faulty(name))
    checkpoint.save(path, TENSORS, {"round": 2})
    whole, points = path.read_bytes(), list(calls)
    assert points.index("fsync") < points.index("replace") < len(points) - 1 - points[::-1].index("fsync")
    for fail_at in range(len(points)):
        path.write_bytes(old)
        calls.clear()
        with pytest.raises(StorageError) as caught:
            checkpoint.save(path, TENSORS, {"round": 2})
        assert caught.value.exit_code == 74
        assert "\n" not in str(caught.value)
        renamed = fail_at > points.index("replace")  # only the directory's flush comes after it
        assert path.read_bytes() == (whole if renamed else old)
        assert [p.name for p in tmp_path.iterdir()] == ["c"]
    tried(len(points))


def test_ctrl_c_while_writing_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "c", TENSORS, {})
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    checkpoint.save(tmp_path / "c", TENSORS, VALUES)
    assert same(checkpoint.load(tmp_path / "c")[0], TENSORS)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        checkpoint.save(tmp_path / "file" / "c", {}, {})


def test_temporaries_of_the_dead_are_removed_and_of_the_living_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, rename = tmp_path / "c", [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(Path(old).name), rename(old, new)))
    checkpoint.save(path, {}, {})
    prefix, mine, _ = seen[0].partition(f"{os.getpid()}-")
    assert mine
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    for pid in (dead, os.getpid(), os.getppid()):
        (tmp_path / f"{prefix}{pid}-00.tmp").touch()
    (tmp_path / "other.tmp").touch()
    checkpoint.save(path, {}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["c", f"{prefix}{os.getppid()}-00.tmp", "other.tmp"])


def _write_forever(path: Path) -> None:
    block = np.zeros(20_000, np.float32)
    for number in range(10**9):
        checkpoint.save(path, {"w": block + number}, {"round": number})


def test_kill_at_random_instants_leaves_a_whole_file_every_time(tmp_path: Path, tried: Tried) -> None:
    path, rng, newest = tmp_path / "c", random.Random(7), -1
    checkpoint.save(path, {"w": np.full(20_000, -1, np.float32)}, {"round": -1})
    for _ in range(60):
        child = os.fork()
        if child == 0:
            try:
                _write_forever(path)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        tensors, values = checkpoint.load(path)
        assert (tensors["w"] == values["round"]).all()
        newest = max(newest, values["round"])
    tried(60)
    assert newest > 0, "no child ever completed a save: the test proves nothing"
    checkpoint.save(path, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_the_blob_is_safetensors_own_and_nothing_is_copied(tmp_path: Path) -> None:
    """Streamed from the arrays themselves: the same bytes as the library's, and next to no memory."""
    import tracemalloc

    import safetensors.numpy

    tensors = {"b": np.ones((300, 1000), np.float32), "a": np.zeros(7, np.float64), "n": np.asarray(3, np.int64)}
    tensors |= {"half": np.ones(5, np.float16), "none": np.zeros((0, 2), np.float32), "flag": np.asarray([True])}
    tracemalloc.start()
    checkpoint.save(tmp_path / "c", tensors, {"x": 1})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert safetensors.numpy.save(tensors) in (tmp_path / "c").read_bytes()
    assert peak < 300_000  # of 1.2 MB
