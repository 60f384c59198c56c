"""Flower's records as NumPy arrays, without copying, and the flat vector of what is trained.

An ``Array`` holds the bytes of a ``.npy`` file. ``Array.numpy()`` copies them; a view is enough to look at them, and a
server looks at every reply.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]
Arrays = dict[str, NDArray[Any]]
Trainable = Callable[[str], bool] | Iterable[str] | None

_NPY = "numpy.ndarray"  # the only serialization flwr.app.Array knows
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


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

    Trained arrays are stepped and enter Δ; the others (BatchNorm statistics) are averaged, and integers among them
    take the largest value.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    trained: tuple[str, ...]

    @property
    def untrained(self) -> list[str]:
        """Averaged, never stepped."""
        return [name for name in self.shapes if name not in self.trained]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Trainable = None) -> Layout:
        """From the arrays a run starts with. ``trainable``: names, or a predicate; default: floats that are no
        BatchNorm statistic by name (running_mean, running_var, num_batches_tracked)."""
        arrays = views(record)
        if trainable is None:
            chosen = {name for name in arrays if not name.endswith(_BUFFERS)}
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

    def mismatch(self, arrays: Mapping[str, NDArray[Any]]) -> str | None:
        """What is wrong with a reply's arrays, or None. Nothing is broadcast, nothing is cast."""
        if arrays.keys() != self.shapes.keys():
            odd = sorted(arrays.keys() ^ self.shapes.keys())[0]
            return f"array {odd!r:.80} is {'missing' if odd in self.shapes else 'not one of the model'}"
        for name, shape in self.shapes.items():
            if arrays[name].shape != shape:
                return f"array {name!r} has shape {arrays[name].shape}, expected {shape}"
            if arrays[name].dtype != self.dtypes[name]:
                return f"array {name!r} is {arrays[name].dtype}, expected {self.dtypes[name]}"
        return None

    def vector(self, fill: Callable[[str, NDArray[Any]], object], out: Vector | None = None) -> Vector:
        """One vector of the trained numbers, each array's part written by ``fill(name, part)``; ``out`` is reused."""
        dtype = np.result_type(np.float32, *(self.dtypes[name] for name in self.trained))
        sizes = [math.prod(self.shapes[name]) for name in self.trained]
        flat: Vector = np.empty(sum(sizes), dtype) if out is None else out
        for name, part in self.named(flat).items():
            fill(name, part)
        return flat

    def delta(self, before: Arrays, after: Arrays, out: Vector | None = None) -> Vector:
        """Δ = before − after over the trained arrays, as one vector; written into ``out`` if that is given."""
        return self.vector(
            lambda name, part: np.subtract(before[name], after[name], out=part, casting="same_kind"), out
        )

    def named(self, vector: Vector) -> Arrays:
        """A vector of trained numbers, cut into named arrays again (views)."""
        pieces, start = {}, 0
        for name in self.trained:
            size = math.prod(self.shapes[name])
            pieces[name] = vector[start : start + size].reshape(self.shapes[name])
            start += size
        return pieces

    def accepts(self, after: Arrays) -> bool:
        """Whether this is a model of this shape, all of it finite."""
        return all(
            name in after and after[name].shape == shape and finite(after[name]) for name, shape in self.shapes.items()
        )

    def largest(self, replies: list[Arrays]) -> Arrays:
        """Integer arrays (BatchNorm counts its batches): the largest of the clients', in their own type."""
        whole = [name for name, dtype in self.dtypes.items() if dtype.kind in "iub"]
        return {name: np.maximum.reduce([arrays[name] for arrays in replies]) for name in whole}

    def stepped(
        self,
        before: Arrays,
        after: Arrays,
        buffers: Arrays,
        global_lr: float,
        step: Arrays | None,
        record: ArrayRecord | None,
    ) -> ArrayRecord | None:
        """w − α · step for what is trained, the average for what is not; None when that overflows.

        ``step`` None: it is w − w_inner; ``record`` holds w_inner, ``after``, as it came.
        """
        arrays = {}
        for name, dtype in self.dtypes.items():
            if name not in self.trained:
                new = np.rint(buffers[name]) if dtype.kind in "iub" else buffers[name]
            elif global_lr == 1.0 and step is None:
                new = after[name]
            else:
                with np.errstate(over="ignore", invalid="ignore"):
                    new = np.multiply(before[name] - after[name] if step is None else step[name], global_lr)
                    new = np.subtract(before[name], new, out=new)
            if record is not None and new is after[name] and new.dtype == dtype and new.flags.c_contiguous:
                arrays[name] = record[name]  # as it came: no copy, and the same bits
                continue
            with np.errstate(over="ignore"):
                new = new.astype(dtype, copy=False)
            if not finite(new):
                return None
            arrays[name] = pack(new)
        return ArrayRecord(arrays)


def mean(replies: list[Arrays], weights: list[float], names: Iterable[str]) -> Arrays:
    """Σ p_m x_m with p_m = weight / Σ weights, in the replies' order and their type, as Flower's FedAvg sums."""
    total = sum(weights)
    averaged: Arrays = {}
    for name in names:
        out = replies[0][name] * (weights[0] / total)
        term = np.empty_like(out)
        for arrays, weight in zip(replies[1:], weights[1:], strict=True):
            np.multiply(arrays[name], weight / total, out=term)
            out += term
        averaged[name] = out
    return averaged
