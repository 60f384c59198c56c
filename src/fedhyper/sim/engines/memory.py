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
    """Shared memory: tensors that stay | w_t, its buffers, its counters, Δ_t-1 | slots for replies | how to begin.

    A slot holds the replies of one piece. ``free`` are those that nobody uses.
    """

    def __init__(
        self, descriptor: int, start: int, first: int, slots: int, largest: int, sizes: tuple[int, int, int]
    ) -> None:
        self.numbers = descriptor, start, first, slots, largest, sizes  # all that another process needs to open it
        self._memory, self._largest, self._sizes = mmap.mmap(descriptor, 0), largest, sizes
        self._first = first + _length(1, *sizes, sizes[0])
        self.sent = [tensor[0] for tensor in _cut(memoryview(self._memory)[first:], 1, *sizes, sizes[0])]
        self.free = list(range(slots))[::-1]  # what was freed last is taken first: few pages are ever touched

    @classmethod
    def make(cls, build: Build, sent: Sent, slots: int, largest: int) -> Block:
        """One with at least as many slots for ``largest`` replies each; untouched pages take no memory."""
        sizes = sent.weights.numel(), sent.buffers.numel(), sent.counters.numel()
        slots += HELD // _length(largest, *sizes)
        packer = _Packer(file := BytesIO())
        packer.dump(build)
        start = packer.end + _length(1, *sizes, sizes[0]) + slots * _length(largest, *sizes)
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("fedhyper")  # not in /dev/shm, which is small in containers
        else:
            with tempfile.TemporaryFile() as nameless:
                descriptor = os.dup(nameless.fileno())
        os.ftruncate(descriptor, start + file.tell())
        block = cls(descriptor, start, packer.end, slots, largest, sizes)
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

    def slot(self, number: int, then: Callable[[int], None] | None = None) -> list[Tensor]:
        """Δ_m, buffers, counters, a row a reply; when nobody holds any part of them any more, ``then(number)``."""
        length = _length(self._largest, *self._sizes)
        view = memoryview(self._memory)[self._first + number * length :][:length]
        if then is not None:
            weakref.finalize(view, then, number)
        return _cut(view, self._largest, *self._sizes)

    def replies(self, slot: int, told: list[tuple[Any, ...]]) -> list[Reply]:
        """What a worker has left in a slot, where it lies; the slot is free again when nobody holds any of them."""
        rows = zip(*(part[: len(told)].unbind() for part in self.slot(slot, self.free.append)), strict=True)
        return [Reply(*one[:2], *parts, *one[2:]) for one, parts in zip(told, rows, strict=True)]


def _length(rows: int, *sizes: int) -> int:
    """Bytes of so many rows of tensors with so many numbers, the third one's of 8 bytes, the others' of 4."""
    return rows * sum(-(-size * (8 if i == 2 else 4) // _LINE) * _LINE for i, size in enumerate(sizes))


def _cut(view: memoryview, rows: int, *sizes: int) -> list[Tensor]:
    """``[rows, size]`` for each, with every row at the beginning of a cache line."""
    tensors, place = [], 0
    for i, size in enumerate(sizes):
        dtype, width = (torch.int64, 8) if i == 2 else (torch.float32, 4)
        padded = -(-size * width // _LINE) * _LINE // width
        tensors.append(_at(view, place, dtype, rows * padded).view(rows, padded)[:, :size])
        place += rows * padded * width
    return tensors


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
