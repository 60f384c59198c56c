"""Model ⇄ flat vector: one buffer for the trainable weights, two that take turns for the gradient; inner products.

The vector is what federated learning exchanges: Δ = weights before − weights after. Buffers (BatchNorm statistics) and
frozen parameters stay out of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedhyper import arrays

# Below 32,768 numbers torch never splits an elementwise operation among threads, so a result has the same bits for
# any thread count. torch.dot would be no simpler: MKL splits it from 8,192 numbers on. Measured on 11 M float32, one
# thread: this 8 ms, all in float64 (arrays.inner) 22 ms, torch.dot (bits depend on threads) 6 ms.
_BLOCK = 32_000

# What float32 loses when a product underflows is at most 1.2e-38 a term: below n · 1e-31 that could be 1e-7 of the sum.
_TINY = 1e-31


def inner(a: Tensor | Sequence[Tensor], b: Tensor | Sequence[Tensor]) -> float:
    """``<a, b> = Σ a_i b_i`` of two vectors, or of two vectors in pieces; the same bits for any number of threads.

    float32 on the CPU: products and sums of ≤ n / 32,000 terms in float32, the rest in float64, error about
    1e-7 · |a||b|; all in float64 where that would underflow or overflow. Every other dtype: all in float64.
    Pieces may have any shape and strides. For a stack of vectors [clients, d] see ``fedhyper.arrays.inner``.
    """
    pairs = list(_pairs(a, b))
    if all(x.dtype == y.dtype == torch.float32 and x.is_cpu and y.is_cpu for x, y in pairs):
        total = _inner_float32(pairs)
        if math.isfinite(total) and abs(total) > _TINY * sum(x.numel() for x, _ in pairs):
            return total
    return _inner_float64(pairs)


def cosine(a: Tensor | Sequence[Tensor], b: Tensor | Sequence[Tensor]) -> float:
    """``<a, b> / (|a||b|)`` in [-1, 1]; 0 when either is zero, NaN when either is not finite."""
    scale = math.sqrt(inner(a, a)) * math.sqrt(inner(b, b))
    return inner(a, b) / scale if scale > 0 else scale


def _pairs(a: Tensor | Sequence[Tensor], b: Tensor | Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The two vectors as one-dimensional pieces, elements in the same order."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            raise ValueError("one vector is a tensor and the other is in pieces; give both in the same form")
        a, b = (a,), (b,)
    if len(a) != len(b):
        raise ValueError(f"the two vectors have {len(a)} and {len(b)} pieces; they must match")
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:  # broadcasting would make a number out of a mistake
            raise ValueError(f"the two vectors have shapes {tuple(x.shape)} and {tuple(y.shape)}; they must match")
        x, y = x.detach(), y.detach()
        if x.stride() == y.stride() and is_dense(x):
            yield x.as_strided((x.numel(),), (1,)), y.as_strided((y.numel(),), (1,))
        else:
            yield x.reshape(-1), y.reshape(-1)


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


def _inner_float32(pairs: list[tuple[Tensor, Tensor]]) -> float:
    longest = max((x.numel() for x, _ in pairs), default=0)
    sums = torch.zeros(
        min(longest, _BLOCK), dtype=torch.float32
    )  # one running sum a lane, as many as stay in the cache
    for x, y in pairs:
        for u, v in (
            zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True) if x.numel() > _BLOCK else ((x, y),)
        ):
            size = u.numel()
            (sums if size == sums.numel() else sums[:size]).addcmul_(u, v)
    return sums.double().sum().item()


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
