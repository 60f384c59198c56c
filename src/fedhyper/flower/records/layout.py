"""Flower's records as NumPy arrays, without copying, and which of them are trained.

An ``Array`` holds the bytes of a ``.npy`` file. ``Array.numpy()`` copies them; a view is enough to look at them, and a
server looks at every reply.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedhyper.averages import Model
from fedhyper.flower.records.batchnorm import statistics

Arrays = dict[str, NDArray[Any]]
Trainable = Callable[[str], bool] | Iterable[str] | None

_NPY = "numpy.ndarray"  # the only serialization flwr.app.Array knows

_log = logging.getLogger("flwr")


def view(array: Array) -> NDArray[Any]:
    """A read-only look at an ``Array``; ValueError when its bytes are not one plain array."""
    if array.stype != _NPY:
        raise ValueError(f"serialization {array.stype!r}")
    # magic (6 bytes), version (2), length of the rest of the header (2 bytes, from version 2 on 4)
    start = 10 + int.from_bytes(array.data[8:10], "little") if array.data[6:7] == b"\x01" else 1024
    shape, fortran, dtype, start = _header(array.data[:start])
    count = math.prod(shape)
    if len(array.data) != start + count * dtype.itemsize:
        raise ValueError(f"{len(array.data)} bytes for shape {shape}")
    flat = np.frombuffer(array.data, dtype, count, start)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=4096)  # all clients send the same few headers, and reading one takes longer than the check of it
def _header(beginning: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = io.BytesIO(beginning)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"dtype {dtype} and shape {shape}")
    return shape, fortran, dtype, file.tell()


class OpenArray(Array):
    """An ``Array`` that is read and never written to: its ``numpy()`` is a view, and not a copy."""

    @classmethod
    def of(cls, array: Array) -> OpenArray:
        """The same array, by the same bytes."""
        new = cls.__new__(cls)
        new.__dict__.update(array.__dict__)
        return new

    def numpy(self) -> NDArray[Any]:
        """A read-only look at it."""
        return view(self)


def pack(array: NDArray[Any]) -> Array:
    """``Array(array)`` with one copy instead of three."""
    array = np.asarray(array, order="C")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    data = b"".join((header.getvalue(), array.reshape(-1).view(np.uint8).data))
    return Array(str(array.dtype), tuple(array.shape), _NPY, data)


def views(record: Mapping[str, Array]) -> Arrays:
    """Every array of a record, by name."""
    return {name: view(array) for name, array in record.items()}


class Opened(NamedTuple):
    """A record and the views of its arrays, by which an array that was not touched can be known again."""

    record: ArrayRecord
    arrays: Arrays


def finite(array: NDArray[Any]) -> bool:
    """Whether every number is finite; a finite sum of squares proves it, faster than looking at each."""
    if array.dtype.kind != "f":
        return True
    flat = array.ravel(order="K")
    with np.errstate(over="ignore", invalid="ignore"):
        quick = flat.dot(flat) if flat.dtype != np.float16 else np.nan
        return bool(np.isfinite(quick)) or bool(np.isfinite(flat).all())


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays, and which of them are trained.

    Trained arrays are stepped and enter Δ; the other floats (BatchNorm statistics) are averaged, and integers (its
    counters) take the middle one of the clients' values.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    trained: tuple[str, ...]

    @property
    def counters(self) -> list[str]:
        """Integers: neither stepped nor averaged."""
        return [name for name, dtype in self.dtypes.items() if dtype.kind in "iub"]

    @property
    def statistics(self) -> list[str]:
        """Averaged, never stepped."""
        return [name for name in self.shapes if name not in self.trained and name not in self.counters]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Trainable = None) -> Layout:
        """From the arrays a run starts with. ``trainable``: names, or a predicate; default: floats that are no
        BatchNorm statistic, see ``batchnorm``."""
        arrays = views(record)
        if trainable is None:
            found = statistics(arrays)
            chosen = set(arrays) - found.known
            if found.suspected:
                _log.warning(
                    "fedhyper: the arrays %s have no names and look like BatchNorm's statistics, which are not trained;"
                    " say which arrays are: FedHyper(..., trainable=[...])",
                    ", ".join(found.suspected),
                )
        elif callable(trainable):
            chosen = {name for name in arrays if trainable(name)}
        else:
            chosen = set(trainable)
            if unknown := sorted(chosen - set(arrays)):
                raise ValueError(f"trainable names {unknown[0]!r}, which is not among the arrays: {', '.join(arrays)}")
        trained = tuple(name for name in arrays if name in chosen and arrays[name].dtype.kind == "f")
        if not trained:
            raise ValueError(f"trainable leaves nothing to train among the arrays {', '.join(arrays)}")
        return cls(
            {name: tuple(array.shape) for name, array in arrays.items()},
            {name: array.dtype for name, array in arrays.items()},
            trained,
        )

    def fit(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """A reply's arrays in the model's own types, or ValueError. Nothing is broadcast; what is right is not copied.

        A number may be narrower or wider than the model's (float16, float64, a counter that came as 3.0) as long as it
        is still a number in the model's own type.
        """
        self.check(arrays)
        return {name: _cast(name, arrays[name], dtype) for name, dtype in self.dtypes.items()}

    def check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """ValueError unless these are numbers with the model's names and shapes, whatever their types and values."""
        if arrays.keys() != self.shapes.keys():
            odd = sorted(arrays.keys() ^ self.shapes.keys())[0]
            raise ValueError(f"array {odd!r:.80} is {'missing' if odd in self.shapes else 'not one of the model'}")
        for name, shape in self.shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"array {name!r} has shape {arrays[name].shape}, expected {shape}")
            if arrays[name].dtype.kind not in "fiub":
                raise ValueError(f"array {name!r} is {arrays[name].dtype}, expected {self.dtypes[name]}")

    def delta(self, before: Arrays, after: Arrays) -> Arrays:
        """Δ = before − after of the trained arrays, in float32 or wider."""
        pairs = {name: (before[name], after[name]) for name in self.trained}
        made = {name: np.subtract(a, b, dtype=np.result_type(np.float32, a, b)) for name, (a, b) in pairs.items()}
        return {name: np.asarray(array) for name, array in made.items()}  # without axes NumPy gives a number

    def accepts(self, after: Arrays) -> bool:
        """Whether this is a model of this shape, all of it finite."""
        return all(
            name in after and after[name].shape == shape and finite(after[name]) for name, shape in self.shapes.items()
        )

    def middle(self, replies: list[Arrays]) -> Arrays:
        """Integer arrays (BatchNorm counts its batches): the lower median of the clients', number by number, in their
        own type. One client sets the largest for all, and a mean is no whole number."""
        ordered = {name: np.sort([arrays[name] for arrays in replies], axis=0) for name in self.counters}
        return {name: np.asarray(values[(len(replies) - 1) // 2]) for name, values in ordered.items()}

    def model(self, arrays: Arrays) -> Model:
        """What the server loop is shown of these arrays: all but the counters."""
        statistics = {name: arrays[name] for name in self.statistics}
        return Model({name: arrays[name] for name in self.trained}, statistics or 0.0)

    def packed(self, model: Model, counters: Arrays, came: Opened | None = None) -> ArrayRecord | None:
        """A model as it is sent, in its own types; None when that overflows. Arrays of ``came`` stay as they came."""
        new = {**model.weights, **(model.statistics or {}), **counters}
        packed = {}
        for name, dtype in self.dtypes.items():
            array = new[name]
            as_it_came = came is not None and array is came.arrays.get(name)
            if came is not None and as_it_came and array.dtype == dtype and array.flags.c_contiguous:
                packed[name] = came.record[name]  # no copy, and the same bits
                continue
            if dtype.kind in "iub":
                array = np.rint(array)  # an inner strategy may have averaged counters
            with np.errstate(over="ignore"):
                cast = array.astype(dtype, copy=False)
            if cast.dtype != array.dtype and not finite(cast):
                return None
            packed[name] = pack(cast)
        return ArrayRecord(packed)


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == dtype:
        return array
    kinds = {"f": "f"}.get(dtype.kind, "iuf" if dtype.kind in "iu" else "")
    if array.dtype.kind not in kinds:
        raise ValueError(f"array {name!r} is {array.dtype}, expected {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
        fits = (finite(cast) or not finite(array)) if dtype.kind == "f" else bool((cast == array).all())
    if not fits:
        raise ValueError(f"array {name!r} is {array.dtype}, and its numbers do not fit into {dtype}")
    return cast
