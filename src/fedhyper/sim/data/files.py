"""Data files: which ones, what is in them, and whether they are what their publishers released.

Three documented formats are read: idx (``.gz`` or plain), CIFAR-10's binary version, and text by speaking role.
None of them can run code, which pickled copies of the same data can. Every file is checked for structure
(size, shape, label range) each time it is read. Its SHA-256 is compared with the pinned one by ``data check``:
a file that has the right structure and other bytes is used, and reported as what it is.
"""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedhyper.errors import DataError
from fedhyper.sim.data.published import DATASETS, DataFile, dataset

Bytes = npt.NDArray[np.uint8]
State = Literal["verified", "unverified", "missing", "corrupt", "present"]

CIFAR_RECORD = 1 + 3 * 32 * 32  # label, then 1024 red, green and blue bytes
# The type byte of the idx format; numbers are stored most significant byte first.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# An idx file is inflated no further than this, so that a hostile .gz cannot fill the memory.
MAX_CONTENT = 1 << 30
MAX_TEXT = 1 << 26  # bytes of a text: sixty times the published one
_GZIP = 1 << 16  # bytes that compressing may add
_ahead: dict[str, Future[list[Any]]] = {}
_digests: dict[str, dict[str, str]] = {}


def data_dir() -> Path:
    """The directory that holds one directory a dataset: ``FEDHYPER_DATA``, or else the user's cache."""
    chosen = os.environ.get("FEDHYPER_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("fedhyper"))


# --- readers -------------------------------------------------------------------------------------------------


def read_content(path: Path, limit: int = MAX_CONTENT) -> bytes:
    """The bytes of a file, inflated if it is gzip; refused if they are more than ``limit``."""
    try:
        with path.open("rb") as file:
            # not read_bytes: a sparse file of terabytes costs its owner nothing
            raw = file.read(limit + _GZIP + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its rights") from error
    if len(raw) > limit + (_GZIP if raw.startswith(b"\x1f\x8b") else 0):
        raise _damaged(path, f"it holds more than the expected {limit:,} bytes")
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    inflate = zlib.decompressobj(wbits=31)
    try:
        content = inflate.decompress(raw, limit + 1)
    except zlib.error as error:
        raise _damaged(path, "its compressed data is corrupt") from error
    if len(content) > limit:
        raise _damaged(path, f"it holds more than the expected {limit:,} bytes")
    if not inflate.eof:
        raise _damaged(path, f"it is cut short ({len(raw):,} bytes are there)")
    if inflate.unused_data:
        raise _damaged(path, f"{len(inflate.unused_data):,} bytes follow its end")
    return content


def parse_idx(content: bytes, path: Path) -> npt.NDArray[Any]:
    """The array of an idx file: two zero bytes, a type, the number of dimensions, each dimension, the data."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES or not 1 <= content[3] <= 8:
        raise _damaged(path, f"it does not start like an idx file ({content[:4].hex(' ') or 'empty'})")
    kind, head = np.dtype(IDX_TYPES[content[2]]), 4 + 4 * content[3]
    if len(content) < head:
        raise _damaged(path, "it is cut short within its header")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=content[3], offset=4))
    expected = head + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise _damaged(path, f"its header promises {expected:,} bytes, it holds {len(content):,}")
    return np.frombuffer(content, kind, offset=head).reshape(shape)


def read_idx(path: Path) -> npt.NDArray[Any]:
    """The array in an idx file, gzip or plain (read-only: it is a view of the file's bytes)."""
    return parse_idx(read_content(path), path)


def parse_cifar(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
    """Images ``[n, 3, 32, 32]`` and labels ``[n]`` of a file in CIFAR-10's binary format, 3073 bytes a record."""
    if not content or len(content) % CIFAR_RECORD:
        raise _damaged(path, f"{len(content):,} bytes are not a whole number of {CIFAR_RECORD}-byte records")
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar(path: Path) -> tuple[Bytes, Bytes]:
    """Images and labels of one CIFAR-10 batch file."""
    return parse_cifar(read_content(path), path)


def parse_roles(content: bytes, path: Path) -> dict[str, str]:
    """Each speaking role and all it says, in the order of the text.

    A speech is a line ``NAME:``, then its lines, then an empty line. The speeches of one role are joined with a
    line break. Two plays' roles of one name are one role: the text does not say where a play ends.
    """
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is not UTF-8 text (byte {error.start:,})") from error
    if not text.endswith("\n"):
        raise _damaged(path, "its last line has no end, so it is cut short or empty")
    speeches: dict[str, list[str]] = {}
    for block in text.rstrip("\n").split("\n\n"):
        name, _, body = block.lstrip("\n").partition("\n")
        if not name.endswith(":"):
            raise _damaged(path, f"a speech starts with {name[:40]!r} where a role such as 'ROMEO:' is due")
        if body:
            speeches.setdefault(name[:-1], []).append(body)
    return {name: "\n".join(said) for name, said in speeches.items()}


def read_roles(path: Path) -> dict[str, str]:
    """Each speaking role of a text file and all it says."""
    return parse_roles(read_content(path), path)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path} is damaged: {what}; delete it and run `fedhyper data fetch`, or put a good copy there")


# --- registered files ----------------------------------------------------------------------------------------


def find_file(directory: Path, file: DataFile) -> Path | None:
    """Where the file lies: under its name, or without ``.gz``. None if it is not there."""
    names = [file.path, file.path.removesuffix(".gz")]
    return next((directory / name for name in names if (directory / name).is_file()), None)


def parse_file(file: DataFile, path: Path, content: bytes) -> Any:
    """The content of a registered file, once its structure is what the registry says."""
    if file.kind == "text":
        return parse_roles(content, path)
    if file.kind == "cifar":
        images, labels = parse_cifar(content, path)
        if labels.shape != file.shape:
            raise _damaged(path, f"it holds {len(labels):,} records, expected {file.shape[0]:,}")
        _check_labels(labels, path)
        return images, labels
    array = parse_idx(content, path)
    if array.shape != file.shape or array.dtype != np.uint8:
        raise _damaged(path, f"it holds {array.dtype} of shape {array.shape}, expected uint8 of {file.shape}")
    if array.ndim == 1:
        _check_labels(array, path)
    return array


def _check_labels(labels: Bytes, path: Path) -> None:
    if labels.max() > 9:
        where = int(labels.argmax())
        raise _damaged(path, f"label {where:,} is {labels[where]}, expected 0 to 9")


def _limit(file: DataFile) -> int:
    # 64 bytes are more than an idx header has; a longer file still differs in size and is refused by the parser.
    if file.kind == "text":
        return MAX_TEXT
    return math.prod(file.shape) * (CIFAR_RECORD if file.kind == "cifar" else 1) + 64


def read_ahead(name: str) -> None:
    """Begin to read a dataset in another thread, for the next ``load_files``: it goes on while torch is imported."""
    if name in DATASETS and name not in _ahead:
        pool = ThreadPoolExecutor(1)
        _ahead[name] = pool.submit(_read_files, name)
        pool.shutdown(wait=False)


def load_files(name: str) -> list[Any]:
    """Every file of a dataset, read and checked, in the order of the registry."""
    begun = _ahead.pop(name, None)
    return _read_files(name) if begun is None else begun.result()


def digests(name: str) -> dict[str, str]:
    """The SHA-256 of each file of a dataset, as it was when this process read it last; empty: it did not."""
    return dict(sorted(_digests.get(name, {}).items()))


def _read_files(name: str) -> list[Any]:
    files, directory = dataset(name).files, data_dir() / name
    paths = [find_file(directory, file) for file in files]
    missing = [file.path for file, path in zip(files, paths, strict=True) if path is None]
    if missing:
        raise DataError(
            f"{name}: {', '.join(missing)} missing in {directory}; run `fedhyper data fetch {name}`, "
            "or set FEDHYPER_DATA to a directory that has them"
        )

    def load(file: DataFile, path: Path | None) -> Any:
        assert path is not None
        content = read_content(path, _limit(file))
        _digests.setdefault(name, {})[file.path] = hashlib.sha256(content).hexdigest()
        return parse_file(file, path, content)

    # zlib releases the interpreter while it works, so two threads inflate two files at once.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(load, files, paths))


@dataclass(frozen=True)
class FileStatus:
    """One file: its state, size on disk in bytes, the SHA-256 of its content, and what is wrong with it."""

    path: str
    state: State
    size: int = 0
    sha256: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class DatasetStatus:
    """A dataset: its directory, its files, and the worst of their states."""

    name: str
    directory: Path
    files: tuple[FileStatus, ...]

    @property
    def state(self) -> State:
        """``missing`` before ``corrupt`` before ``unverified`` (not the published bytes) before ``verified``."""
        order: tuple[State, ...] = ("missing", "corrupt", "unverified", "present", "verified")
        return min((file.state for file in self.files), key=order.index)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


def file_status(directory: Path, file: DataFile, check: bool = True) -> FileStatus:
    """Look at one file; with ``check`` read it whole, otherwise say only whether it is ``present``."""
    path = find_file(directory, file)
    if path is None:
        return FileStatus(file.path, "missing")
    size = path.stat().st_size
    if not check:
        return FileStatus(file.path, "present", size)
    try:
        content = read_content(path, _limit(file))
        parse_file(file, path, content)
    except DataError as error:
        return FileStatus(file.path, "corrupt", size, problem=str(error))
    digest = hashlib.sha256(content).hexdigest()
    return FileStatus(file.path, "verified" if digest == file.sha256 else "unverified", size, digest)


def dataset_status(names: Sequence[str] | None = None, *, check: bool = True) -> list[DatasetStatus]:
    """What ``fedhyper data list`` (``check=False``, instant) and ``data check`` (reads every byte) show."""
    root = data_dir()
    chosen = [dataset(name) for name in (DATASETS if names is None else names)]
    return [
        DatasetStatus(d.name, root / d.name, tuple(file_status(root / d.name, f, check) for f in d.files))
        for d in chosen
    ]


def fetch(name: str, progress: bool = True) -> DatasetStatus:
    """Download what is missing or damaged, check it, and return the dataset's status.

    A file with the right structure and other bytes than the published ones is the user's and stays.
    """
    from fedhyper.sim.data.download import download  # brings pooch, requests and rich: only when needed

    download(dataset(name), data_dir() / name, progress)
    return dataset_status([name])[0]
