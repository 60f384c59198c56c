"""Clients side by side: for models made of linear layers, one matrix product serves a whole stack of clients.

Such models are so small that Python and autograd cost more than the arithmetic. Here the backward pass is written out,
and a local step of all clients costs about as much as one client's. Stacks have a fixed size, whatever the number of
workers, so that it cannot change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Reply, Sent
from fedhyper.sim.engines.threads import keep_freed_memory
from fedhyper.sim.local.step import Start, make_step
from fedhyper.sim.methods import Local
from fedhyper.sim.models import linear_layers
from fedhyper.sim.registry import LOCALS

Views = list[tuple[Tensor, Tensor]]

_STACK = 32  # clients: large enough to hide Python, small enough to give several workers something to do
_STACK_WEIGHTS = 1 << 23  # weights of a stack altogether: a large model must not cost gigabytes


class _Layer(NamedTuple):
    """Where a layer's matrix ``[out, in]`` and bias ``[out]`` lie in the flat vector."""

    start: int
    inputs: int
    outputs: int

    @property
    def bias(self) -> int:
        return self.start + self.inputs * self.outputs

    @property
    def end(self) -> int:
        return self.bias + self.outputs

    def matrix(self, flat: Tensor) -> Tensor:
        """``[..., out, in]``, a view."""
        return flat[..., self.start : self.bias].view(*flat.shape[:-1], self.outputs, self.inputs)

    def offset(self, flat: Tensor) -> Tensor:
        """``[..., out]``, a view."""
        return flat[..., self.bias : self.end]


class StackedEngine:
    """Trains ``Flatten, Linear (, ReLU, Linear)*`` on a stack of clients at once, without autograd."""

    def __init__(self, *, model: nn.Module, task: Task, local: Local, workers: int, device: str) -> None:
        keep_freed_memory()
        layers, start = [], 0
        for linear in linear_layers(model) or []:
            layers.append(_Layer(start, linear.in_features, linear.out_features))
            start = layers[-1].end
        self.layers, self.local = layers, local
        self.train_x, self.test_x = (x.flatten(1).to(device) for x in (task.train_x, task.test_x))
        self.train_y, self.test_y = task.train_y.to(device), task.test_y.to(device)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # workers are threads of ours; a sum split among torch's has other bits
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self.largest = max(1, min(_STACK, _STACK_WEIGHTS // self.layers[-1].end))

    def pieces(self, tasks: Sequence[ClientTask]) -> list[Sequence[int]]:
        """The stacks, as positions in ``tasks``: of about as many local steps each, from half of ``_STACK`` clients on.

        A step of a stack costs as much as 2 clients' more than its clients' (33 and 18 µs, softmax): two stacks of 16
        are 6 % slower than one of 32 where there is one core, and 1.9 times as fast on two.
        """
        count = 1 if 2 * len(tasks) <= _STACK else 2 * -(-len(tasks) // _STACK)
        share = sum(len(task.batches) for task in tasks) / count
        stacks: list[list[int]] = [[]]
        done = 0
        for i, task in enumerate(tasks):
            if len(stacks[-1]) == self.largest or done >= share * len(stacks):
                stacks.append([])
            stacks[-1].append(i)
            done += len(task.batches)
        return list(stacks)

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """Stacks of clients, replies in the order of ``tasks``."""
        stacks = [[tasks[i] for i in piece] for piece in self.pieces(tasks)]
        if self._pool is None or len(stacks) == 1:
            for stack in stacks:
                yield from self.train_piece(stack, sent)
        else:
            for replies in self._pool.map(lambda stack: self.train_piece(stack, sent), stacks):
                yield from replies

    def train_piece(self, tasks: Sequence[ClientTask], sent: Sent) -> list[Reply]:
        """One stack."""
        return self._train_stack(tasks, sent)

    def _train_stack(self, tasks: Sequence[ClientTask], sent: Sent) -> list[Reply]:
        # most steps first: at every step the clients still at work are the first n rows
        order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].batches))
        steps = np.array([len(tasks[i].batches) for i in order])
        index, shares = self._padded([tasks[i] for i in order])
        answers, width = self.train_y[index].unsqueeze(2), index.shape[2]
        wanted = shares.new_zeros(*index.shape[:2], self.layers[-1].outputs, width)
        wanted.scatter_(2, answers, -shares.unsqueeze(2))
        weights = sent.weights.to(self.train_x.device).repeat(len(tasks), 1)
        delta = None if sent.delta is None else sent.delta.to(weights.device)
        epochs = np.array([tasks[i].epoch_steps for i in order])
        lengths = [torch.from_numpy(counts).to(weights.device) for counts in (steps, epochs)]
        step = make_step(self.local, weights, Start(sent.local_lr, lengths[0], lengths[1], delta, sent.cohort))
        needs_loss = LOCALS.get(self.local.kind).needs_loss
        grads = [torch.empty_like(weights), torch.empty_like(weights)]  # CL compares with the one before
        log_p = torch.zeros_like(wanted)
        inputs = self.train_x.new_empty(len(tasks) * width, self.train_x.shape[1])
        working = (steps > np.arange(len(index))[:, None]).sum(1)
        ends = [*np.flatnonzero(np.diff(working)) + 1, len(index)]
        # Views cost as much as the arithmetic: they are made once for all steps that the same clients take.
        for start, end in zip([0, *ends], ends, strict=False):
            n, here = int(working[start]), slice(start, end)
            x, mine = inputs[: n * width], [rows[:n] for rows in grads]
            batch = x.view(n, width, -1)
            views, outs = self._views(weights[:n]), [self._views(rows) for rows in mine]
            columns = (
                index[here, :n].reshape(end - start, -1),
                wanted[here, :n],
                shares[here, :n].unsqueeze(2),
                log_p[here, :n],
            )
            for k, (rows, right, share, found) in enumerate(zip(*(c.unbind() for c in columns), strict=True), start):
                torch.index_select(self.train_x, 0, rows, out=x)
                self._gradient(views, batch, right, share, out=outs[k % 2], log_p=found)
                loss = (found * right).sum((1, 2)) if needs_loss else None
                step.step(mine[k % 2], loss)
        deltas = sent.weights - weights.cpu()
        losses = -(log_p.gather(2, answers).squeeze(2).double() * shares).sum(2).cpu()
        first, mean = losses[0].tolist(), (losses.sum(0) / torch.from_numpy(steps)).tolist()
        replies: dict[int, Reply] = {}
        for row, i in enumerate(order):
            replies[i] = Reply.of(
                tasks[i],
                step.rates(row),
                delta=deltas[row],
                buffers=sent.buffers,
                counters=sent.counters,
                first_loss=first[row],
                mean_loss=mean[row],
            )
        return [replies[i] for i in range(len(tasks))]

    def _padded(self, tasks: Sequence[ClientTask]) -> tuple[Tensor, Tensor]:
        """Example indices ``[step, client, batch]`` and each example's share of its mean; padding has share 0."""
        drawn = [list(task.batches) for task in tasks]
        shape = (len(drawn[0]), len(tasks), max(len(batch) for batches in drawn for batch in batches))
        index, shares = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for i, batches in enumerate(drawn):
            counts = np.array([len(batch) for batch in batches])
            step = np.repeat(np.arange(len(counts)), counts)
            place = np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts)
            index[step, i, place], shares[step, i, place] = np.concatenate(batches), 1 / counts[step]
        return torch.from_numpy(index).to(self.train_x.device), torch.from_numpy(shares).to(self.train_x.device)

    def _views(self, rows: Tensor) -> Views:
        """Each layer's matrices ``[n, out, in]`` and biases ``[n, out, 1]``."""
        return [(layer.matrix(rows), layer.offset(rows).unsqueeze(2)) for layer in self.layers]

    def _gradient(self, weights: Views, x: Tensor, wanted: Tensor, share: Tensor, *, out: Views, log_p: Tensor) -> None:
        """The gradient of each client's mean cross-entropy goes to ``out``, log p of all answers to ``log_p``.

        ``x`` is ``[n, batch, inputs]``, ``share`` ``[n, 1, batch]``, ``wanted`` −share at the right answers and 0
        elsewhere. Activations are ``[n, units, batch]``: with the batch first the product that gives the gradient of a
        matrix has a transposed factor, and takes twice as long.
        """
        inputs, z = [], x.transpose(1, 2)
        for i, (matrix, offset) in enumerate(weights):
            inputs.append(z if i == 0 else z.relu_())
            z = torch.baddbmm(offset, matrix, inputs[-1])
        torch.log_softmax(z, 1, out=log_p)
        dz = torch.addcmul(wanted, torch.exp(log_p, out=z), share)
        for i in reversed(range(len(weights))):
            torch.bmm(dz, inputs[i].transpose(1, 2), out=out[i][0])
            torch.sum(dz, 2, keepdim=True, out=out[i][1])
            if i:
                dz = torch.bmm(weights[i][0].transpose(1, 2), dz).mul_(inputs[i] > 0)

    def _outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        z = x
        for i, layer in enumerate(self.layers):
            z = torch.addmm(layer.offset(weights), z if i == 0 else z.relu_(), layer.matrix(weights).T)
        return z

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """Mean loss and accuracy on the test set."""
        outputs = self._outputs(sent.weights.to(self.test_x.device), self.test_x)
        right = int((outputs.argmax(1) == self.test_y).sum())
        return float(cross_entropy(outputs, self.test_y).item()), right / len(self.test_y)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """Accuracy on each client's own training examples."""
        right = (self._outputs(sent.weights.to(self.train_x.device), self.train_x).argmax(1) == self.train_y).cpu()
        own = [torch.from_numpy(partition.client(i)) for i in range(len(partition.sizes))]
        return [float(right[i].double().mean()) for i in own]

    def close(self) -> None:
        """End the workers and give torch its threads back."""
        if self._pool is not None:
            self._pool.shutdown()
        torch.set_num_threads(self._threads)
