"""Data files: read right, refused in one line when they are not, fetched only with the pinned bytes."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhyper.errors import DataError, StorageError, UserError
from fedhyper.sim.data import files as data
from fedhyper.sim.data import loaders
from fedhyper.sim.data.published import DATASETS, DataFile, Dataset, Download
from fedhyper.sim.data.tasks import Task, load_task
from fedhyper.sim.registry import TASKS, register_task

REAL = os.environ.get("FEDHYPER_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="FEDHYPER_DATA names no directory with the real datasets")


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


IMAGES, LABELS = np.arange(24).reshape(2, 3, 4), np.array([7, 9])
CONTENT = {"images.gz": idx(IMAGES), "labels.gz": idx(LABELS)}
WIRE = {name: gzip.compress(content, mtime=0) for name, content in CONTENT.items()}
RECORDS = b"".join(bytes([label]) + bytes([label]) * 1024 + bytes(1024) + b"\xff" * 1024 for label in (3, 8))
SPEECH = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 8
PLAY = f"HAMLET:\n{SPEECH.strip()}\n\nGHOST:\nMark me.\n\nHAMLET:\nI will.\n\nGHOST:\n\n"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tiny(url: str = "https://127.0.0.1:9/") -> Dataset:
    shapes = {"images.gz": IMAGES.shape, "labels.gz": LABELS.shape}
    return Dataset(
        "tiny",
        tuple(DataFile(name, "idx", sha(CONTENT[name]), shapes[name]) for name in CONTENT),
        tuple(Download(name, url + name, sha(wire), len(wire)) for name, wire in WIRE.items()),
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with the tiny dataset in it, registered."""
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path))
    monkeypatch.setitem(DATASETS, "tiny", tiny())
    (tmp_path / "tiny").mkdir()
    for name, wire in WIRE.items():
        (tmp_path / "tiny" / name).write_bytes(wire)
    return tmp_path


def refusal(function: Callable[[], object], kind: type[UserError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- readers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_idx(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "f").write_bytes(compress(idx(IMAGES)))
    assert np.array_equal(data.read_idx(tmp_path / "f"), IMAGES)


def test_idx_of_other_types(tmp_path: Path) -> None:
    values = np.array([-2.5, 300.0])
    for code, kind in data.IDX_TYPES.items():
        expected = values.astype(np.int8).astype(np.uint8) if code == 8 else values.astype(kind)
        (tmp_path / "f").write_bytes(bytes([0, 0, code, 1, 0, 0, 0, 2]) + expected.astype(kind).tobytes())
        assert np.array_equal(data.read_idx(tmp_path / "f"), expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a zip file", "does not start like an idx file"),
        (b"\0\0\x07\x01\0\0\0\x01x", "does not start like an idx file"),
        (b"\0\0\x08\0x", "does not start like an idx file"),
        (b"\0\0\x08\x03\0\0", "within its header"),
        (idx(IMAGES)[:-1], "promises 40 bytes, it holds 39"),
        (idx(IMAGES) + b"x", "it holds 41"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "promises"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "cut short"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-1], "cut short"),
        (gzip.compress(idx(IMAGES), mtime=0) + b"x", "1 bytes follow its end"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-5] + b"xxxxx", "corrupt"),
        (b"\x1f\x8b" + b"\xff" * 20, "corrupt"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    message = refusal(lambda: data.read_idx(path))
    assert words in message
    assert str(path) in message
    assert "delete it" in message


def test_inflating_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(50_000_000), mtime=0))
    assert "more than the expected 1,000 bytes" in refusal(lambda: data.read_content(tmp_path / "bomb.gz", 1_000))


def test_an_unreadable_path(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(lambda: data.read_idx(tmp_path))
    assert "No such file" in refusal(lambda: data.read_idx(tmp_path / "none"))


def test_cifar(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(RECORDS)
    images, labels = data.read_cifar(path)
    assert labels.tolist() == [3, 8]
    assert images.shape == (2, 3, 32, 32)
    assert (images[1, 0] == 8).all()
    assert (images[:, 1] == 0).all()
    assert (images[:, 2] == 255).all()
    for content in (b"", RECORDS[:-1]):
        path.write_bytes(content)
        assert "3073-byte records" in refusal(lambda: data.read_cifar(path))


def test_roles(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    assert data.read_roles(path) == {"HAMLET": SPEECH.strip() + "\nI will.", "GHOST": "Mark me."}
    path.write_text("\n" + PLAY.replace("\n", "\r\n"), newline="")
    assert data.read_roles(path)["GHOST"] == "Mark me."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short or empty"),
        (PLAY.encode()[:100], "cut short"),
        (b"HAMLET:\nTo be\xff\n", "not UTF-8 text (byte 13)"),
        (b"To be, or not\n\n", "where a role"),
        (b"A:\nx\n\nno name\nx\n", "'no name'"),
    ],
)
def test_damaged_text_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "f").write_bytes(content)
    assert words in refusal(lambda: data.read_roles(tmp_path / "f"))


# --- the registry and the directory --------------------------------------------------------------------------


def test_the_registry_is_https_and_its_hashes_are_hashes() -> None:
    for name, dataset in DATASETS.items():
        assert name == dataset.name
        for item in (*dataset.files, *dataset.downloads):
            assert len(bytes.fromhex(item.sha256)) == 32
            assert not Path(item.path).is_absolute()
            assert ".." not in item.path
        for download in dataset.downloads:
            assert download.url.startswith("https://")


def test_the_directory_is_the_one_named_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHYPER_DATA", "~/sets")
    assert data.data_dir() == Path.home() / "sets"
    for clear in (lambda: monkeypatch.setenv("FEDHYPER_DATA", ""), lambda: monkeypatch.delenv("FEDHYPER_DATA")):
        clear()
        assert data.data_dir().is_absolute()
        assert "fedhyper" in str(data.data_dir())


def test_importing_data_brings_neither_torch_nor_pooch() -> None:
    heavy = {"torch", "pooch", "sklearn", "requests", "rich"}
    code = f"import sys, fedhyper.sim.data.files; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def state(name: str = "tiny", check: bool = True) -> str:
    (status,) = data.dataset_status([name], check=check)
    return status.state


def test_status_of_good_files(root: Path) -> None:
    assert state() == "verified"
    assert state(check=False) == "present"
    (status,) = data.dataset_status(["tiny"])
    assert status.directory == root / "tiny"
    assert status.size == sum(map(len, WIRE.values()))
    assert [file.sha256 for file in status.files] == [sha(content) for content in CONTENT.values()]
    images, labels = data.load_files("tiny")
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(labels, LABELS)


def test_recompressed_or_plain_content_is_still_the_published(root: Path) -> None:
    (root / "tiny" / "images.gz").write_bytes(gzip.compress(CONTENT["images.gz"], 1, mtime=0))
    (root / "tiny" / "labels.gz").unlink()
    (root / "tiny" / "labels").write_bytes(CONTENT["labels.gz"])
    assert state() == "verified"
    assert np.array_equal(data.load_files("tiny")[1], LABELS)


def test_other_bytes_of_the_right_structure_are_used_and_called_so(root: Path) -> None:
    (root / "tiny" / "images.gz").write_bytes(gzip.compress(idx(IMAGES + 1), mtime=0))
    assert state() == "unverified"
    assert np.array_equal(data.load_files("tiny")[0], IMAGES + 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("images.gz", WIRE["images.gz"][:-3], "cut short"),
        ("images.gz", gzip.compress(idx(IMAGES[:1]), mtime=0), "of shape (1, 3, 4), expected uint8 of (2, 3, 4)"),
        ("images.gz", gzip.compress(bytes(10_000), mtime=0), "more than the expected"),
        ("labels.gz", gzip.compress(idx(np.array([7, 10])), mtime=0), "label 1 is 10, expected 0 to 9"),
    ],
)
def test_a_corrupt_file_is_found_by_check_and_by_load(root: Path, name: str, content: bytes, words: str) -> None:
    (root / "tiny" / name).write_bytes(content)
    assert state() == "corrupt"
    message = refusal(lambda: data.load_files("tiny"))
    assert words in message
    assert name in message
    (status,) = data.dataset_status(["tiny"])
    assert [file.problem for file in status.files if file.state == "corrupt"] == [message]


def test_cifar_records_are_counted_and_their_labels_checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "c", Dataset("c", (DataFile("b.bin", "cifar", sha(RECORDS), (2,)),), ()))
    (root / "c").mkdir()
    (root / "c" / "b.bin").write_bytes(RECORDS)
    assert state("c") == "verified"
    (root / "c" / "b.bin").write_bytes(RECORDS[:3073])
    assert "it holds 1 records, expected 2" in refusal(lambda: data.load_files("c"))
    (root / "c" / "b.bin").write_bytes(b"\x0b" + RECORDS[1:])
    assert "label 0 is 11" in refusal(lambda: data.load_files("c"))


def test_missing_files_are_named_with_the_cure(root: Path) -> None:
    (root / "tiny" / "labels.gz").unlink()
    assert state() == "missing"
    message = refusal(lambda: data.load_files("tiny"))
    assert f"labels.gz missing in {root / 'tiny'}" in message
    assert "fedhyper data fetch tiny" in message
    assert "images.gz" not in message
    assert DataError("").exit_code == 5


def test_an_unknown_dataset() -> None:
    assert "did you mean 'fmnist'?" in refusal(lambda: data.fetch("fminst"), UserError)


# --- fetch, from a server on this machine --------------------------------------------------------------------


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict]:
    """A loopback server of the tiny files; ``serve[path]`` is bytes, a status, or an address to redirect to."""
    serve: dict = {"/" + name: wire for name, wire in WIRE.items()} | {"asked": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            serve["asked"].append(self.path)
            answer = serve.get(self.path, 404)
            if isinstance(answer, list):
                answer = answer.pop(0)
            if isinstance(answer, bytes):
                self.send_response(200)
                self.send_header("Content-Length", str(serve.get("length", len(answer))))
                self.end_headers()
                self.wfile.write(answer)
            elif isinstance(answer, str):
                self.send_response(302)
                self.send_header("Location", answer)
                self.end_headers()
            else:
                self.send_error(answer)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    serve["url"] = f"http://127.0.0.1:{httpd.server_port}/"
    monkeypatch.setitem(DATASETS, "tiny", tiny(serve["url"]))
    monkeypatch.setattr("time.sleep", lambda _: None)  # pooch waits between its retries
    for name in WIRE:
        (root / "tiny" / name).unlink()
    yield serve
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def left(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in (root / "tiny").rglob("*"))


@pytest.mark.parametrize("progress", [True, False])
def test_fetch_brings_the_pinned_files(server: dict, root: Path, progress: bool) -> None:
    assert data.fetch("tiny", progress=progress).state == "verified"
    assert left(root) == ["tiny/images.gz", "tiny/labels.gz"]
    data.fetch("tiny", progress=progress)
    assert server["asked"] == ["/images.gz", "/labels.gz"]


def test_fetch_replaces_a_corrupt_file_and_leaves_the_users_own(server: dict, root: Path) -> None:
    own = gzip.compress(idx(IMAGES + 1), mtime=0)
    (root / "tiny" / "images.gz").write_bytes(own)
    (root / "tiny" / "labels.gz").write_bytes(WIRE["labels.gz"][:-2])
    assert data.fetch("tiny", progress=False).state == "unverified"
    assert (root / "tiny" / "images.gz").read_bytes() == own
    assert server["asked"] == ["/labels.gz"]


def test_fetch_tries_again(server: dict) -> None:
    server["/images.gz"] = [503, WIRE["images.gz"][:-1] + b"x", WIRE["images.gz"]]
    assert data.fetch("tiny", progress=False).state == "verified"


def test_fetch_follows_a_redirect(server: dict) -> None:
    server["/elsewhere"] = server["/images.gz"]
    server["/images.gz"] = "/elsewhere"
    assert data.fetch("tiny", progress=False).state == "verified"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"other bytes", "does not have the pinned SHA-256 " + sha(WIRE["images.gz"])),
        (WIRE["images.gz"][:-1], "does not have the pinned SHA-256"),
        (WIRE["images.gz"][:-1] + b"x", "does not have the pinned SHA-256"),
        (WIRE["images.gz"] + bytes(1_000), "it is longer than its"),
        (404, "the server answers 404"),
        ("http://example.invalid/images.gz", "not https"),
        ("ftp://127.0.0.1/images.gz", "not https"),
        ("/images.gz", "redirects"),
    ],
)
def test_a_bad_download_leaves_nothing(server: dict, root: Path, answer: object, words: str) -> None:
    server["/images.gz"] = answer
    message = refusal(lambda: data.fetch("tiny", progress=False))
    assert words in message
    assert "images.gz" in message
    assert str(root / "tiny") in message
    assert left(root) == []


def test_a_connection_that_breaks_off_leaves_nothing(server: dict, root: Path) -> None:
    server["length"] = len(WIRE["images.gz"]) + 5
    message = refusal(lambda: data.fetch("tiny", progress=False))
    assert "broke off" in message
    assert left(root) == []


def test_no_network_says_which_files_to_put_where(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    for name in WIRE:
        (root / "tiny" / name).unlink()
    message = refusal(lambda: data.fetch("tiny", progress=False))
    assert f"no connection); put images.gz, labels.gz into {root / 'tiny'}" in message


def test_plain_http_elsewhere_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setitem(DATASETS, "tiny", tiny("http://example.invalid/"))
    (root / "tiny" / "labels.gz").unlink()
    assert "not https" in refusal(lambda: data.fetch("tiny", progress=False))


def test_an_unwritable_directory(server: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDHYPER_DATA", str(tmp_path / "file"))
    assert "change FEDHYPER_DATA" in refusal(lambda: data.fetch("tiny", progress=False), StorageError)


# --- archives ------------------------------------------------------------------------------------------------


def tar(members: list[tuple[str, bytes | str]]) -> bytes:
    """A .tar.gz; a member whose content is a string is a symbolic link to it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def serve_archive(server: dict, monkeypatch: pytest.MonkeyPatch, wire: bytes) -> None:
    server["/a.tar.gz"] = wire
    dataset = dataclasses.replace(
        tiny(),
        files=tuple(dataclasses.replace(file, path="in/" + file.path) for file in tiny().files),
        downloads=(Download("a.tar.gz", server["url"] + "a.tar.gz", sha(wire), len(wire)),),
        archive=True,
    )
    monkeypatch.setitem(DATASETS, "tiny", dataset)


GOOD: list[tuple[str, bytes | str]] = [("in/" + name, wire) for name, wire in WIRE.items()]


def test_an_archive_is_unpacked_and_removed(server: dict, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_archive(server, monkeypatch, tar([*GOOD, ("in/readme", b"x"), ("../escaped", b"x"), ("in/link", "/etc")]))
    assert data.fetch("tiny", progress=False).state == "verified"
    assert left(root) == ["tiny/in", "tiny/in/images.gz", "tiny/in/labels.gz"]
    assert not (root / "escaped").exists()


def test_an_archive_the_user_put_there_is_used_and_kept(
    server: dict, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_archive(server, monkeypatch, tar(GOOD))
    (root / "tiny" / "a.tar.gz").write_bytes(server["/a.tar.gz"])
    assert data.fetch("tiny", progress=False).state == "verified"
    assert (root / "tiny" / "a.tar.gz").exists()
    assert server["asked"] == []


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (GOOD[:1], "it lacks in/labels.gz"),
        ([GOOD[0], ("in/labels.gz", "/etc/passwd")], "no file of a sensible size"),
        ([(f"m{i}", b"") for i in range(100)] + GOOD, "more than 64 members"),
        ([("in", "/tmp"), *GOOD], None),
    ],
)
def test_a_hostile_archive_leaves_nothing(
    server: dict, root: Path, monkeypatch: pytest.MonkeyPatch, members: list, words: str | None
) -> None:
    serve_archive(server, monkeypatch, tar(members))
    if words is None:  # the link is not a member we want, so it is not made
        assert data.fetch("tiny", progress=False).state == "verified"
        assert not (root / "tiny" / "in").is_symlink()
        return
    assert words in refusal(lambda: data.fetch("tiny", progress=False))
    assert left(root) == []


@pytest.mark.parametrize("wire", [b"no archive", tar(GOOD)[:120], tar(GOOD)[:40]], ids=["none", "long", "short"])
def test_a_damaged_archive_leaves_nothing(
    server: dict, root: Path, monkeypatch: pytest.MonkeyPatch, wire: bytes
) -> None:
    serve_archive(server, monkeypatch, wire)
    assert "cannot be unpacked" in refusal(lambda: data.fetch("tiny", progress=False))
    assert left(root) == []


# --- tasks ---------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_and_split_by_class() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    assert np.array_equal(loaders._digits_table(), np.column_stack([bunch.data, bunch.target]))
    task = load_task("digits")
    assert task.train_x.shape == (1437, 1, 8, 8)
    assert task.test_x.shape == (360, 1, 8, 8)
    assert 0 <= task.train_x.min() < task.train_x.max() == 1
    counts = torch.bincount(task.test_y)
    assert counts.min() >= 35
    assert counts.max() <= 37
    every = torch.cat([task.train_x, task.test_x]).flatten(1).numpy() * 16
    assert sorted(map(bytes, every.astype(np.uint8))) == sorted(map(bytes, bunch.data.astype(np.uint8)))


def test_images_are_normalised_per_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (130, 3, 4, 4), dtype=np.uint8)
    got = loaders._normalised("cifar10", [pixels[:70], pixels[70:]])
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in loaders.NORMALISE["cifar10"])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), (torch.from_numpy(pixels) / 255.0 - mean) / std, atol=1e-6, rtol=1e-6)


def test_characters_have_eighty_numbers() -> None:
    assert loaders.VOCABULARY == 80
    assert len(set(loaders.CHARACTERS)) == 79
    assert loaders.encode("\nz€~\x7f").tolist() == [1, 79, 0, 0, 0]
    text = "O $ma!"
    assert "".join(loaders.CHARACTERS[i - 1] for i in loaders.encode(text)) == text


def test_shakespeare_predicts_the_next_character_and_keeps_the_test_apart(root: Path) -> None:
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "input.txt").write_text(PLAY + "HORATIO:\n" + SPEECH)
    task = load_task("shakespeare")
    said = SPEECH.strip() + "\nI will."
    cut = int(0.8 * len(said))
    assert task.groups is not None
    assert len(task.groups) == 2  # GHOST says too little
    assert task.train_x.shape == (sum(map(len, task.groups)), 80)
    assert len(task.groups[0]) == len(range(0, cut - 80, 20))
    for row, group_row in enumerate(task.groups[0]):
        start = 20 * row
        assert task.train_x[group_row].tolist() == loaders.encode(said[start : start + 80]).tolist()
        assert task.train_y[group_row] == loaders.encode(said[start + 80]).item()
        assert start + 80 < cut
    assert task.test_x[0].tolist() == loaders.encode(said[cut : cut + 80]).tolist()
    assert task.tokens
    assert task.classes == 80


def test_a_role_needs_one_test_sequence_and_its_target(root: Path) -> None:
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "input.txt").write_text(f"A:\n{'a' * 400}\n\nB:\n{'b' * 401}\n")
    task = load_task("shakespeare")
    assert len(task.test_x) == 1
    assert set(task.train_y.tolist()) == set(loaders.encode("b").tolist())


def test_text_with_no_long_role(root: Path) -> None:
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "input.txt").write_text("A:\nshort\n")
    assert "no role with 401 characters" in refusal(lambda: load_task("shakespeare"))


def make(**changes: object) -> Task:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    values: dict = {"name": "mine", "train_x": x, "train_y": y, "test_x": x, "test_y": y, "classes": 3}
    return Task(**values | changes)


def test_a_users_task_is_one_function() -> None:
    register_task("mine", model="mlp")(make)
    try:
        assert load_task("mine").shape == (2,)
        assert load_task("mine").model == "mlp"
        assert "mine" in TASKS
        register_task("mine", model="mlp", natural=True)(make)  # as a notebook's cell does when it runs again
        assert "natural=True if it has groups, and only then" in refusal(lambda: load_task("mine"), UserError)
        register_task("mine", model="mlp")(lambda: 3)
        assert "must return a Task, got int" in refusal(lambda: load_task("mine"), UserError)
    finally:
        TASKS.remove("mine")
    assert "is built in" in refusal(lambda: register_task("digits", model="mlp")(make), UserError)
    assert "did you mean 'digits'?" in refusal(lambda: load_task("digit"), UserError)
    assert "choose one of digits" in refusal(lambda: load_task("zzz"), UserError)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_x": torch.zeros(4)}, "train_x has shape (4,)"),
        ({"train_x": torch.zeros(0, 2), "train_y": torch.zeros(0, dtype=torch.int64)}, "train_x has shape (0, 2)"),
        ({"test_y": torch.zeros(3, dtype=torch.int64)}, "test_y (3,)"),
        ({"train_x": torch.zeros(4, 2, dtype=torch.float64)}, "torch.float64"),
        ({"train_y": torch.zeros(4)}, "train_y torch.float32"),
        ({"classes": 2}, "train_y runs from 0 to 2; expected 0 to 1"),
        ({"train_x": torch.tensor([[0.0, float("nan")]] * 4)}, "not finite"),
        ({"test_x": torch.tensor([[0.0, float("inf")]] * 4)}, "not finite"),
        ({"test_x": torch.zeros(4, 3)}, "(2,) and (3,)"),
        ({"groups": (np.array([0, 1]), np.array([1, 2, 3]))}, "exactly once"),
        ({"groups": (np.array([0, 1]),)}, "exactly once"),
        ({"groups": (np.arange(5),)}, "exactly once"),
    ],
)
def test_a_task_that_does_not_fit_together_is_refused(changes: dict, words: str) -> None:
    assert words in refusal(lambda: make(**changes), UserError)


def test_a_subset_is_always_the_same_and_keeps_its_groups() -> None:
    x = torch.arange(40.0).reshape(20, 2)  # example j starts with 2j
    y = torch.arange(20) % 3
    whole = make(train_x=x, train_y=y, groups=(np.arange(7), np.arange(7, 19), np.array([19])))
    part = whole.subset(12)
    assert len(part.train_x) == 12
    assert torch.equal(part.train_x, whole.subset(12).train_x)
    kept = (part.train_x[:, 0] / 2).long()
    assert torch.equal(part.train_y, kept % 3)
    assert torch.equal(part.test_x, whole.test_x)
    assert part.groups is not None
    assert (kept[part.groups[0]] < 7).all()
    assert (kept[part.groups[1]] >= 7).all()
    assert all(len(group) for group in part.groups)
    for size in (0, 21):
        assert f"subset = {size}" in refusal(lambda size=size: whole.subset(size), UserError)  # type: ignore[misc]


# --- the real files ------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28)),
        ("fmnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28)),
        ("cifar10", (50_000, 3, 32, 32), (10_000, 3, 32, 32)),
        ("shakespeare", (39_783, 80), (4_767, 80)),
    ],
)
def test_the_real_files(name: str, train: tuple[int, ...], test: tuple[int, ...]) -> None:
    task = load_task(name)
    assert task.train_x.shape == train
    assert task.test_x.shape == test
    if not task.tokens:
        assert task.train_y.bincount().min() >= 5_000
        assert abs(task.train_x.mean().item()) < 0.01
        assert abs(task.train_x[:5_000].std().item() - 1) < 0.05
    else:
        assert task.groups is not None
        assert len(task.groups) == 193
        assert 0 not in task.train_x  # every character of the text is in the table
    (status,) = data.dataset_status([name])
    assert status.state in ("verified", "unverified")
