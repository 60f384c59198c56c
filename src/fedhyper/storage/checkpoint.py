"""One file holds everything a run needs to go on: written whole or not at all, read whole or refused.

    save(path, tensors, values)          tensors: name -> NumPy array;  values: JSON (NaN and infinities included)
    tensors, values = load(path)         raises CheckpointRefused, one line that names the file

File: magic (8 bytes) | version (u32) | header length (u64) | canonical JSON header | safetensors blob | SHA-256 of all
that. A kill at any instant leaves the old file or the new one (``files``). The digest proves that the bytes are those
that were written, not who wrote them. Neither function executes anything a file says: no pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedhyper.errors import CheckpointRefused, StorageError
from fedhyper.storage.files import replace_by

Tensors = dict[str, NDArray[Any]]

MAGIC = b"FEDHYPER"
VERSION = 1
_PREFIX = struct.Struct("<8sIQ")
_STRETCH = 1 << 24  # bytes that are hashed and written at a time
_DIGEST = hashlib.sha256().digest_size


def _encode(value: Any) -> Any:
    """JSON has no NaN and no infinity; a tag keeps them, and keeps every other reader's JSON parser happy."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(pairs: dict[str, Any]) -> Any:
    return float(pairs["$float"]) if set(pairs) == {"$float"} else pairs


def to_plain(value: Any, tensors: dict[str, Any], path: str) -> Any:
    """``value`` as JSON, its arrays (NumPy, torch) moved to ``tensors``; one that occurs twice is kept once."""
    if isinstance(value, np.generic):
        value = value.item()
    if hasattr(value, "dtype"):
        name = next((name for name, seen in tensors.items() if seen is value), path)
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": {key: to_plain(item, tensors, f"{path}/{key}") for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]
    return _encode(value)


def from_plain(value: Any, tensors: Mapping[str, Any], like: Any = None) -> Any:
    """The inverse of ``to_plain``; ``like``, a value of the same form, gives the types of tuples (without: lists)."""
    if isinstance(value, dict):
        if "items" in value:
            return {key: from_plain(item, tensors) for key, item in value["items"].items()}
        return tensors[value["tensor"]] if "tensor" in value else _decode(value)
    if not isinstance(value, list):
        return value
    if not isinstance(like, tuple):
        return [from_plain(item, tensors) for item in value]
    if not hasattr(like, "_fields"):  # as many as there are: a plain tuple may grow
        models = [*like, *[None] * (len(value) - len(like))]
        return tuple(from_plain(item, tensors, model) for item, model in zip(value, models, strict=False))
    items = [from_plain(item, tensors, model) for item, model in zip(value, like, strict=True)]
    return type(like)(*items)


def save(path: Path | str, tensors: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> None:
    """Replace ``path`` by a file with these arrays and values, or raise StorageError and leave it as it was.

    ``values`` must be JSON (dict, list, str, int, float, bool, None); tuples come back as lists. Any other type is a
    TypeError, a key that is not a string too. bfloat16 does not exist in NumPy: save it as a view of int16.
    """
    path = Path(path)
    _check_keys(values)
    header = json.dumps(_encode(dict(values)), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    pieces = _safetensors(tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_by(path, _with_digest((_PREFIX.pack(MAGIC, VERSION, len(header)), header, *pieces)))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(
            f"{path}: the checkpoint cannot be written: {reason}; free space or choose another place"
        ) from error


def _safetensors(tensors: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """The bytes of ``safetensors.numpy.save``, as views of the arrays themselves: that one copies everything twice."""
    # NumPy's ascontiguousarray would turn a 0-dimensional array into a 1-dimensional one
    arrays = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in tensors.items()}
    # the library says in which order (the widest numbers first: all are aligned), and how it calls their types
    empty = safetensors.numpy.save({name: array.reshape(-1)[:0] for name, array in arrays.items()})
    kinds = {name: entry["dtype"] for name, entry in json.loads(empty[8:]).items()}
    names = list(kinds)
    entries, start = {}, 0
    for name in names:
        end = start + arrays[name].nbytes
        entries[name] = {"dtype": kinds[name], "shape": list(arrays[name].shape), "data_offsets": [start, end]}
        start = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    views = [arrays[name].reshape(-1).view(np.uint8).data for name in names if arrays[name].size]
    return [len(header).to_bytes(8, "little"), header, *views]


def _with_digest(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The pieces as they are written, in stretches, and the digest of all of them. Hashing goes on in a thread of its
    own while the stretch before is being written: both leave the interpreter to others."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1) as pool:
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _STRETCH):
                stretch = view[start : start + _STRETCH]
                hashed = pool.submit(digest.update, stretch)
                yield stretch
                hashed.result()
    yield digest.digest()


def _check_keys(value: Any) -> None:
    """json.dumps would quietly turn the key 1 into "1", and a resumed run would not find it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a checkpoint's keys are strings, got {key!r}")
            _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_keys(item)


def load(path: Path | str) -> tuple[Tensors, dict[str, Any]]:
    """The arrays (writable copies) and the values of ``save``, or CheckpointRefused."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointRefused(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise CheckpointRefused(f"{path}: the checkpoint cannot be read: {error.strerror}") from error
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointRefused(f"{path}: not a fedhyper checkpoint")
    if len(data) < _PREFIX.size + _DIGEST:
        raise CheckpointRefused(f"{path}: the checkpoint is damaged (cut short)")
    _, version, length = _PREFIX.unpack_from(data)
    if version > VERSION:
        raise CheckpointRefused(f"{path}: written by a newer fedhyper (format {version}, this one reads {VERSION})")
    body = memoryview(data)
    if hashlib.sha256(body[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise CheckpointRefused(f"{path}: the checkpoint is damaged (its checksum does not match)")
    # Past this line the bytes are what somebody's `save` wrote, or a forgery that took the trouble of a digest.
    if version != VERSION or length > len(data) - _PREFIX.size - _DIGEST:
        raise CheckpointRefused(f"{path}: not a fedhyper checkpoint (its header is not one)")
    start = _PREFIX.size + length
    try:
        values = json.loads(data[_PREFIX.size : start].decode(), object_hook=_decode, parse_constant=_refuse)
        tensors = safetensors.numpy.load(bytes(body[start:-_DIGEST]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointRefused(f"{path}: not a fedhyper checkpoint ({type(error).__name__} in its content)") from error
    if not isinstance(values, dict):
        raise CheckpointRefused(f"{path}: not a fedhyper checkpoint (its header is not an object)")
    return {name: array.copy() for name, array in tensors.items()}, values


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
