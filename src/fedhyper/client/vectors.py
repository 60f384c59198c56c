"""Model ⇄ flat vector: one buffer for the trainable weights, two that take turns for the gradient; inner products.

The vector is what federated learning exchanges: Δ = weights before − weights after. Buffers (BatchNorm statistics) and
frozen parameters stay out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedhyper import arrays

# Pieces short enough that nobody splits them among threads, so that a result has the same bits for any thread count
# (torch splits an elementwise operation or a sum from 32,768 numbers on, MKL a dot product from 8,192). From _LARGE on,
# one batched product [2, n] × [n, 2] of the halves of every block, of which the diagonal counts: it runs at the speed
# of memory, where [1, n] × [n, 1] takes MKL's slow path. Measured on 11 M float32, one thread: this 6.7 ms, running
# sums in lanes 10 ms, float64 (arrays.inner) 22 ms, one torch.dot (bits depend on threads) 6.7 ms.
_BLOCK = 4_096
_LARGE = 65_536
_SUM = 32_000

# What float32 loses when a product underflows is at most 1.2e-38 a term: below n · 1e-31 that could be 1e-7 of the sum.
_TINY = 1e-31


Vector = Tensor | Sequence[Tensor]  # whole, or in pieces of any shape and strides


def inner(a: Vector, b: Vector) -> float:
    """``<a, b> = Σ a_i b_i`` of two vectors, or of two vectors in pieces; the same bits for any number of threads.

    float32 on the CPU: short sums in float32, the sum of those in float64, error about 1e-7 · |a||b|; all in float64
    where that would underflow or overflow. Every other dtype: all in float64.
    For a stack of vectors [clients, d] see ``fedhyper.arrays.inner``.
    """
    return inners(a, b)[0]


def inners(a: Vector, *others: Vector) -> list[float]:
    """``[<a, b>, <a, c>, ...]``, the same bits as ``inner`` one by one."""
    return _inners(_dot, a, *others)


def inners_single(a: Vector, *others: Vector) -> list[float]:
    """``inners`` where torch has one thread whatever the machine (in a simulator's worker): the whole piece at once.

    With two workers every call waits for the interpreter's lock, and the blocks of ``inners`` are calls.
    """
    return _inners(lambda a, b: torch.dot(a, b).item(), a, *others)


def _inners(dot: Callable[[Tensor, Tensor], float], a: Vector, *others: Vector) -> list[float]:
    rows = list(_rows(a, *others))
    totals = [math.nan] * len(others)
    if all(x.dtype == torch.float32 and x.is_cpu for row in rows for x in row):
        totals = [math.fsum(dot(row[0], row[1 + i]) for row in rows) for i in range(len(others))]
    tiny = _TINY * sum(row[0].numel() for row in rows)
    return [
        total if abs(total) > tiny and math.isfinite(total) else _inner_float64([(row[0], row[1 + i]) for row in rows])
        for i, total in enumerate(totals)
    ]


def cosine(a: Vector, b: Vector) -> float:
    """``<a, b> / (|a||b|)`` in [-1, 1]; 0 when either is zero, NaN when either is not finite."""
    scale = math.sqrt(inner(a, a)) * math.sqrt(inner(b, b))
    return inner(a, b) / scale if scale > 0 else scale


def _rows(*vectors: Vector) -> Iterator[list[Tensor]]:
    """The vectors' first pieces, then their second pieces, ..., one-dimensional, elements in the same order."""
    whole = [isinstance(vector, Tensor) for vector in vectors]
    if any(whole) and not all(whole):
        raise ValueError("one vector is a tensor and the other is in pieces; give both in the same form")
    pieces = [[vector] if isinstance(vector, Tensor) else vector for vector in vectors]
    if len({len(vector) for vector in pieces}) > 1:
        raise ValueError(f"the two vectors have {' and '.join(str(len(x)) for x in pieces)} pieces; they must match")
    for row in zip(*pieces, strict=True):
        x, stride = row[0], row[0].stride()
        same = is_dense(x)
        for y in row[1:]:
            if x.shape != y.shape:  # broadcasting would make a number out of a mistake
                raise ValueError(f"the two vectors have shapes {tuple(x.shape)} and {tuple(y.shape)}; they must match")
            same = same and y.stride() == stride
        if same and not x.is_contiguous():
            row = tuple(y.as_strided((y.numel(),), (1,)) for y in row)
        yield [(y.detach() if y.requires_grad else y).reshape(-1) for y in row]


def is_dense(x: Tensor) -> bool:
    """Whether the elements of ``x`` fill one stretch of memory, in whatever order."""
    if x.is_contiguous():
        return True
    span = 1
    for stride, size in sorted((st, s) for st, s in zip(x.stride(), x.shape, strict=True) if s != 1):
        if stride != span:
            return False
        span *= size
    return True


def _dot(a: Tensor, b: Tensor) -> float:
    size = a.numel()
    whole = size - size % (2 * _BLOCK) if size >= _LARGE else 0
    if size <= _SUM:
        return (a * b).sum().item()
    total = 0.0
    for start in range(whole, size, _SUM):
        total += (a[start : start + _SUM] * b[start : start + _SUM]).sum().item()
    if whole:
        x, y = (v[:whole].view(-1, 2, _BLOCK) for v in (a, b))
        products = torch.bmm(x, y.mT, out=a.new_empty(len(x), 2, 2))  # with out=, autocast leaves it alone
        parts = products.diagonal(dim1=1, dim2=2).reshape(-1)
        for start in range(0, parts.numel(), _SUM):
            total += parts[start : start + _SUM].sum(dtype=torch.float64).item()
    return total


def _inner_float64(pairs: list[tuple[Tensor, Tensor]]) -> float:
    if all(x.is_cpu for x, _ in pairs):
        return float(arrays.inner([x for x, _ in pairs], [y for _, y in pairs]))
    # An accelerator's sum does not depend on the host's threads; one transfer for all pieces.
    return torch.stack([(x.double() * y.double()).sum() for x, y in pairs]).sum().item()


def channels_last(batch: Tensor) -> Tensor:
    """``batch`` [N, C, H, W] with NHWC strides, which CPU convolutions are 1.5 × faster on; no copy when C = 1.

    ``contiguous(memory_format=torch.channels_last)`` leaves a one-channel tensor as it is, and the kernels with it.
    """
    n, c, h, w = batch.shape
    if c == 1:
        return batch.contiguous().as_strided((n, c, h, w), _nhwc_stride(batch.shape))
    return batch.contiguous(memory_format=torch.channels_last)


def _nhwc_stride(shape: Sequence[int]) -> tuple[int, int, int, int]:
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)


class Piece(NamedTuple):
    """Where one tensor lives in a flat vector."""

    name: str
    start: int
    shape: torch.Size
    stride: tuple[int, ...]

    def view(self, vector: Tensor) -> Tensor:
        """This tensor inside ``vector``: a view in the tensor's own shape (and strides)."""
        return vector.as_strided(self.shape, self.stride, vector.storage_offset() + self.start)


class FlatModel:
    """A model whose trainable parameters are views of one vector, and their gradients of another.

    Made in place: ``model`` stays the same object and works as ever, ``model.state_dict()`` included.

        flat = FlatModel(model, channels_last=True)
        flat.weights            [d] the trainable parameters; write here and the model has them
        flat.grad               [d] what backward() adds to
        flat.before             [d] the other gradient buffer: the previous gradient after ``swap()``
        flat.buffers            [b] floating-point buffers (BatchNorm statistics), views too; b may be 0
        flat.counters           {name: tensor} integer and boolean buffers, the model's own
        flat.zero_grad()        empty ``grad``, before the next backward()
        flat.swap()             grad becomes before, the other buffer becomes grad and is emptied: no copy
        flat.named(vector)      {name: view} of any vector laid out like ``weights``, in the parameters' shapes
        flat.export(vector)     {name: contiguous copy}, the standard layout, to save or send
        flat.flatten(named)     the other way: a new vector
        flat.load(named)        into ``weights``

    channels_last  give 4-D weights NHWC strides (see ``channels_last`` for the input). The vector is then ordered
                   O, H, W, C inside such a weight: compare and average vectors of the same layout only, and use
                   ``export`` and ``load`` at the border.

    A parameter used in several places is held once. ``backward(create_graph=True)`` replaces ``.grad`` and is not for
    this class; ``swap`` and ``zero_grad`` bind it again.
    """

    def __init__(self, model: nn.Module, *, channels_last: bool = False) -> None:
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        _refuse_unflat(trainable)
        persistent = model.state_dict().keys()
        buffers = {name: b for name, b in model.named_buffers() if name in persistent}
        self.model = model
        self.parameters = list(trainable.values())
        self.pieces = _layout(trainable, channels_last)
        self.weights = _gather(trainable, self.pieces)
        self.grad = torch.zeros_like(self.weights)
        self.before = torch.zeros_like(self.weights)
        self._views = [piece.view(self.grad) for piece in self.pieces]
        self._other_views = [piece.view(self.before) for piece in self.pieces]
        statistics = {name: b for name, b in buffers.items() if b.is_floating_point()}
        self.counters = {name: b for name, b in buffers.items() if not b.is_floating_point()}
        self.buffer_pieces = _layout(statistics, channels_last=False)
        self.buffers = _gather(statistics, self.buffer_pieces)
        for tensors, pieces, vector in (
            (trainable, self.pieces, self.weights),
            (statistics, self.buffer_pieces, self.buffers),
        ):
            for piece in pieces:
                tensors[piece.name].data = piece.view(vector)
        self._bind()

    def _bind(self) -> None:
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view

    def zero_grad(self) -> None:
        """Empty ``grad``; what backward() added before is gone."""
        self.grad.zero_()
        self._bind()

    def swap(self) -> None:
        """Keep this gradient as ``before`` and start an empty one, without copying either."""
        self.grad, self.before = self.before, self.grad
        self._views, self._other_views = self._other_views, self._views
        self.zero_grad()

    def named(self, vector: Tensor | None = None) -> dict[str, Tensor]:
        """Views of ``vector`` (default: the weights) by parameter name, each in its parameter's shape."""
        vector = self.weights if vector is None else vector
        if vector.shape != self.weights.shape or not vector.is_contiguous():
            raise ValueError(
                f"a vector of this model is contiguous and has {self.weights.numel()} numbers, "
                f"got shape {tuple(vector.shape)}"
            )
        return {piece.name: piece.view(vector) for piece in self.pieces}

    def export(self, vector: Tensor | None = None) -> dict[str, Tensor]:
        """``named``, as contiguous copies: the standard layout, whatever this model's."""
        return {
            name: view.detach().clone(memory_format=torch.contiguous_format)
            for name, view in self.named(vector).items()
        }

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """A new vector from tensors by name, in any layout, dtype or device."""
        wrong = named.keys() ^ {piece.name for piece in self.pieces}
        if wrong:
            raise ValueError(f"names must be those of the trainable parameters; missing or unknown: {min(wrong)}")
        vector = torch.empty_like(self.weights)
        for piece in self.pieces:
            tensor = named[piece.name]
            if tensor.shape != piece.shape:
                raise ValueError(f"{piece.name} has shape {tuple(piece.shape)}, got {tuple(tensor.shape)}")
            piece.view(vector).copy_(tensor)
        return vector

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Write tensors by name into ``weights``; nothing changes when one of them does not fit."""
        self.weights.copy_(self.flatten(named))


def _refuse_unflat(trainable: Mapping[str, nn.Parameter]) -> None:
    if not trainable:
        raise ValueError("the model has no trainable parameter; set requires_grad=True on those to train")
    first = next(iter(trainable))
    seen: dict[int, str] = {}
    for name, p in trainable.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"{name} has no shape yet; run the model once before flattening it")
        if not p.is_floating_point():
            raise ValueError(f"{name} is {p.dtype}; only real floating-point parameters can be trained here")
        like = trainable[first]
        if (p.dtype, p.device) != (like.dtype, like.device):
            raise ValueError(
                f"{name} is {p.dtype} on {p.device} but {first} is {like.dtype} on {like.device}; "
                "one vector needs one dtype and device"
            )
        other = seen.setdefault(p.data_ptr(), name)
        if other != name and p.numel():
            raise ValueError(f"{name} and {other} share memory; tie them as one Parameter object instead")


def _layout(tensors: Mapping[str, Tensor], channels_last: bool) -> list[Piece]:
    pieces, start = [], 0
    for name, tensor in tensors.items():
        nhwc = channels_last and tensor.dim() == 4
        stride = _nhwc_stride(tensor.shape) if nhwc else torch.empty(tensor.shape, device="meta").stride()
        pieces.append(Piece(name, start, tensor.shape, tuple(stride)))
        start += tensor.numel()
    return pieces


def _gather(tensors: Mapping[str, Tensor], pieces: Sequence[Piece]) -> Tensor:
    size = sum(t.numel() for t in tensors.values())
    like = next(iter(tensors.values()), torch.empty(0))
    vector = torch.empty(size, dtype=like.dtype, device=like.device)
    for piece in pieces:
        piece.view(vector).copy_(tensors[piece.name].detach())
    return vector
