"""The gradient of ``Linear (, ReLU, Linear)*`` for a stack of clients, written out, in buffers that are made once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# Multiplications of one client's product up to which OpenBLAS uses one thread, whatever the machine: beyond, a sum
# could be split, and its bits depend on the number of cores.
_ONE_THREAD = 1 << 18


class Layer(NamedTuple):
    """Where a layer's matrix ``[out, in]`` and bias ``[out]`` lie in the flat vector."""

    start: int
    inputs: int
    outputs: int

    @property
    def bias(self) -> int:
        """Where the bias begins."""
        return self.start + self.inputs * self.outputs

    @property
    def end(self) -> int:
        """Where the next layer begins."""
        return self.bias + self.outputs

    def matrix(self, flat: Tensor) -> Tensor:
        """``[..., out, in]``, a view."""
        return flat[..., self.start : self.bias].view(*flat.shape[:-1], self.outputs, self.inputs)

    def offset(self, flat: Tensor) -> Tensor:
        """``[..., out]``, a view."""
        return flat[..., self.bias : self.end]


def layout(linear: Sequence[nn.Linear]) -> list[Layer]:
    """The layers one after the other in a flat vector."""
    layers, start = [], 0
    for module in linear:
        layers.append(Layer(start, module.in_features, module.out_features))
        start = layers[-1].end
    return layers


def small(*sizes: int) -> bool:
    """Whether the product of two matrices of these sizes has the same bits wherever in memory they lie."""
    return min(sizes) > 1 and math.prod(sizes) <= _ONE_THREAD


def product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    """What computes ``out = a @ b`` for each client, every time it is called, from what is in ``a`` and ``b`` then.

    NumPy's matmul where a client's matrices are small: one call of OpenBLAS for each client, which has kernels for such
    sizes. [10, 784] × [784, 10] for ten clients on a core of an AMD EPYC: 17 µs, torch.bmm 55; the gradient 19 and 32.
    What a client gets does not depend on the others in its stack.
    """
    if a.is_cpu and small(*a.shape[1:], b.shape[2]):
        return partial(np.matmul, a.numpy(), b.numpy(), out.numpy())
    return partial(torch.bmm, a, b, out=out)


class LinearStack:
    """The weights of ``clients`` clients, two gradients that take turns, activations; made once for many rounds.

    ``x`` is where the examples go. Activations are ``[clients, units, batch]``: with the batch first the product that
    gives the gradient of a matrix has a transposed factor, and takes twice as long.
    """

    def __init__(self, layers: Sequence[Layer], clients: int, width: int, device: torch.device) -> None:
        self.layers, self.clients, self.width = layers, clients, width
        self.weights, *self.grads = (torch.empty(clients, layers[-1].end, device=device) for _ in range(3))
        self.x = torch.empty(clients, width, layers[0].inputs, device=device)
        self.z, self.dz = (
            [torch.empty(clients, layer.outputs, width, device=device) for layer in layers] for _ in "zd"
        )
        self._gradients: dict[int, Gradient] = {}

    def gradient(self, n: int) -> Gradient:
        """That of the first ``n`` clients."""
        if n not in self._gradients:
            self._gradients[n] = Gradient(self, n)
        return self._gradients[n]


class Gradient:
    """The gradient of the mean cross-entropy of the first n clients of a stack.

    Its views and products are made once: they cost as much as the arithmetic of a step.
    """

    def __init__(self, stack: LinearStack, n: int) -> None:
        layers, weights = stack.layers, stack.weights[:n]
        self.x = stack.x[:n].flatten(0, 1)
        self.grads = [grad[:n] for grad in stack.grads]
        self.z, self.dz = [z[:n] for z in stack.z], [dz[:n] for dz in stack.dz]
        inputs = [stack.x[:n].transpose(1, 2), *self.z[:-1]]
        matrices = [layer.matrix(weights) for layer in layers]
        self.offsets = [layer.offset(weights).unsqueeze(2) for layer in layers]
        self.forward = [product(*factors) for factors in zip(matrices, inputs, self.z, strict=True)]
        self.backward = [
            product(matrices[i].transpose(1, 2), self.dz[i], self.dz[i - 1]) for i in range(1, len(layers))
        ]
        self.outer = [
            [
                product(dz, x.transpose(1, 2), layer.matrix(grad))
                for layer, dz, x in zip(layers, self.dz, inputs, strict=True)
            ]
            for grad in self.grads
        ]
        self.bias_grads = [[layer.offset(grad) for layer in layers] for grad in self.grads]

    def __call__(self, wanted: Tensor, share: Tensor, log_p: Tensor, k: int) -> None:
        """For the examples in ``x``; it goes to ``grads[k]``, and log p of all answers to ``log_p``.

        ``share`` is ``[n, 1, batch]``, each example's part of its client's mean; ``wanted`` is −share at the right
        answers and 0 elsewhere.
        """
        for i, (multiply, z, offset) in enumerate(zip(self.forward, self.z, self.offsets, strict=True)):
            if i:
                self.z[i - 1].relu_()
            multiply()
            z.add_(offset)
        torch.log_softmax(self.z[-1], 1, out=log_p)
        torch.addcmul(wanted, torch.exp(log_p, out=self.z[-1]), share, out=self.dz[-1])
        for i in reversed(range(len(self.z))):
            self.outer[k][i]()
            torch.sum(self.dz[i], 2, out=self.bias_grads[k][i])
            if i:
                self.backward[i - 1]()
                self.dz[i - 1].mul_(self.z[i - 1] > 0)
