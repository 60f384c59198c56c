"""Shared memory of an engine and its worker processes: one block without a name, mapped by all of them.

Pickling goes to and from processes that this one has started; nothing here reads a file.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor, nn

from fedhyper.client.vectors import is_dense
from fedhyper.sim.engines.base import Divisible, Reply, Sent

HELD = 1 << 28  # bytes of replies that may be held where they were written; beyond, they are copied
_LINE = 64  # bytes of a cache line, where every tensor begins

Build = Callable[[], Divisible]


class Block:
    """Shared memory: tensors that stay | w_t, its buffers, its counters, Δ_t-1 | rows of replies | how to begin."""

    def __init__(self, descriptor: int, start: int, first: int, rows: int, sizes: tuple[int, int, int]) -> None:
        self.numbers = descriptor, start, first, rows, sizes  # all that another process needs to open it
        self._memory, self._sizes, self._length = mmap.mmap(descriptor, 0), sizes, _length(*sizes)
        self._first = first + _length(*sizes, sizes[0])
        self.sent = _cut(memoryview(self._memory)[first : self._first], *sizes, sizes[0])
        self.free = list(range(rows))[::-1]  # what was freed last is taken first: few pages are ever touched

    @classmethod
    def make(cls, build: Build, sent: Sent, rows: int) -> Block:
        """One with at least as many rows; a page that nobody has touched takes no memory."""
        sizes = sent.weights.numel(), sent.buffers.numel(), sent.counters.numel()
        rows += HELD // _length(*sizes)
        packer = _Packer(file := BytesIO())
        packer.dump(build)
        start = packer.end + _length(*sizes, sizes[0]) + rows * _length(*sizes)
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("fedhyper")  # not in /dev/shm, which is small in containers
        else:
            with tempfile.TemporaryFile() as nameless:
                descriptor = os.dup(nameless.fileno())
        os.ftruncate(descriptor, start + file.tell())
        block = cls(descriptor, start, packer.end, rows, sizes)
        weakref.finalize(block, os.close, descriptor)
        block._memory[start:] = file.getvalue()
        for place, tensor in packer.tensors:
            _at(block._memory, place, tensor.dtype, tensor.numel()).copy_(tensor)
        return block

    def unpack(self) -> Build:
        """In a worker: what ``make`` was given. It comes from the process that started this one, not from a file."""
        _Packer.memory = self._memory
        build: Build = ForkingPickler.loads(memoryview(self._memory)[self.numbers[1] :])
        return build

    def row(self, number: int, then: Callable[[int], None] | None = None) -> list[Tensor]:
        """Δ_m, buffers, counters; when nobody holds them any more, ``then(number)``."""
        start = self._first + number * self._length
        view = memoryview(self._memory)[start : start + self._length]
        if then is not None:
            weakref.finalize(view, then, number)
        return _cut(view, *self._sizes)

    def reply(self, row: int, told: tuple[Any, ...]) -> Reply:
        """What a worker has left in a row, where it lies."""
        return Reply(*told[:2], *self.row(row, self.free.append), *told[2:])


def _length(*sizes: int) -> int:
    """Bytes of tensors with so many numbers, the third one's of 8 bytes, the others' of 4."""
    return sum(-(-size * (8 if i == 2 else 4) // _LINE) * _LINE for i, size in enumerate(sizes))


def _cut(view: memoryview, *sizes: int) -> list[Tensor]:
    types = [torch.int64 if i == 2 else torch.float32 for i in range(len(sizes))]
    return [
        _at(view, _length(*sizes[:i]), dtype, size) for i, (dtype, size) in enumerate(zip(types, sizes, strict=True))
    ]


def _at(memory: mmap.mmap | memoryview, place: int, dtype: torch.dtype, count: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place)


class _Packer(ForkingPickler):
    """Tensors are not pickled but given a place from 0 on, and found there by whoever has mapped ``memory``."""

    memory: mmap.mmap

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[tuple[int, Tensor]] = []
        self.end = 0

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return NotImplemented
        if type(thing) not in (Tensor, nn.Parameter) or not thing.is_cpu:
            raise TypeError(f"a {type(thing).__name__} on {thing.device} cannot be shared")
        dense = thing.detach() if is_dense(thing) else thing.detach().contiguous()
        place = self.end
        self.tensors.append((place, dense.as_strided((dense.numel(),), (1,))))
        self.end += -(-dense.nbytes // _LINE) * _LINE
        return _unpacked, (place, dense.dtype, dense.shape, dense.stride(), type(thing), thing.requires_grad)


def _unpacked(
    place: int, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...], kind: type[Tensor], grad: bool
) -> Tensor:
    tensor = _at(_Packer.memory, place, dtype, shape.numel()).as_strided(shape, stride)
    return nn.Parameter(tensor, grad) if kind is nn.Parameter else tensor
