"""Clients side by side: for models made of linear layers, one matrix product serves a whole stack of clients.

Such models are so small that Python and autograd cost more than the arithmetic. Here the backward pass is written out,
and a local step of all clients costs about as much as one client's. What a client gets does not depend on the others in
its stack, so that stacks can be cut to suit the number of workers; where it might, they have a fixed size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local as local_to_thread
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Reply, Sent
from fedhyper.sim.engines.draws import Draw, padded
from fedhyper.sim.engines.linear_stack import LinearStack, layout, small
from fedhyper.sim.engines.stacks import cost, cut
from fedhyper.sim.engines.threads import keep_freed_memory
from fedhyper.sim.local.step import LocalStep, Start, make_step
from fedhyper.sim.methods import Local
from fedhyper.sim.models import linear_layers
from fedhyper.sim.registry import LOCALS

_STACK = 32  # clients: enough to hide Python, and little more memory than a core's own cache has
_WORTH = 3_000  # µs of a round below which sharing it out costs more than it saves (about 1.5 ms for the caller)
_CHUNK = 1 << 22  # answers of the steps prepared at a time (clients × batch × classes each): 16 MB an array
_STACK_WEIGHTS = 1 << 23  # weights of a stack altogether: a large model must not cost gigabytes


class StackedEngine:
    """Trains ``Flatten, Linear (, ReLU, Linear)*`` on a stack of clients at once, without autograd."""

    def __init__(self, *, model: nn.Module, task: Task, local: Local, workers: int, device: str) -> None:
        keep_freed_memory()
        self.layers, self.local = layout(linear_layers(model) or []), local
        self.train_x, self.test_x = (x.flatten(1).to(device) for x in (task.train_x, task.test_x))
        self.train_y, self.test_y = task.train_y.to(device), task.test_y.to(device)
        self._own = local_to_thread()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # workers are threads of ours; a sum split among torch's has other bits
        self._workers, self._pool = workers, ThreadPoolExecutor(workers) if workers > 1 else None
        self.largest = max(1, min(_STACK, _STACK_WEIGHTS // self.layers[-1].end))

    def pieces(self, tasks: Sequence[ClientTask], workers: int) -> list[Sequence[int]]:
        """The stacks, as positions in ``tasks``: one a worker, if that changes no bits.

        It may: a stack is padded to its longest batch, and products of MKL, and of a GPU, depend on where a matrix lies
        in memory. Then there are always two for every ``_STACK`` clients.
        """
        steps = [len(task.batches) for task in tasks]
        widths = {task.width for task in tasks}
        alone = self.train_x.is_cpu and len(widths) == 1  # so far a client's bits are its own
        if not (alone and all(small(layer.inputs, layer.outputs, *widths) for layer in self.layers)):
            return cut(steps, 1 if 2 * len(steps) <= _STACK else 2 * -(-len(steps) // _STACK), self.largest)
        return cut(steps, workers if cost(steps) > _WORTH else 1, self.largest)

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """Stacks of clients, replies in the order of ``tasks``."""
        stacks = [[tasks[i] for i in piece] for piece in self.pieces(tasks, self._workers)]
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
        ordered = [tasks[i] for i in order]
        draws = [Draw(task) for task in ordered]
        steps, epochs = np.array([d.steps for d in draws]), np.array([d.epoch_steps for d in draws])
        stack = self._stack(len(tasks), max(d.width for d in draws))
        weights = stack.weights[: len(tasks)]
        weights.copy_(sent.weights.expand_as(weights))
        delta = None if sent.delta is None else sent.delta.to(weights.device)
        lengths = [torch.from_numpy(counts).to(weights.device) for counts in (steps, epochs)]
        step = make_step(self.local, weights, Start(sent.local_lr, lengths[0], lengths[1], delta, sent.cohort))
        first, total, done = None, np.zeros(len(tasks)), 0
        size = max(1, _CHUNK // (len(tasks) * stack.width * self.layers[-1].outputs))
        with np.errstate(all="ignore"):  # weights that overflow are the guard's to see, as they are with torch
            while done < steps[0]:
                index, shares = padded([draw.next(size) for draw in draws], stack.width)
                losses = self._train_chunk(step, stack, index, shares, steps - done)
                first, done = losses[0].copy() if first is None else first, done + len(index)
                for row in losses:  # the order of a sum of all would depend on the longest client of the stack
                    total += row
        assert first is not None
        deltas = sent.weights - weights.cpu()
        mean = total / steps
        replies: dict[int, Reply] = {}
        for row, i in enumerate(order):
            replies[i] = Reply(
                client=tasks[i].client,
                examples=tasks[i].examples,
                delta=deltas[row],
                buffers=sent.buffers,
                counters=sent.counters,
                first_loss=float(first[row]),
                mean_loss=float(mean[row]),
                **step.used(row)._asdict(),
            )
        return [replies[i] for i in range(len(tasks))]

    def _stack(self, clients: int, width: int) -> LinearStack:
        """This worker's buffers; another batch size or more clients need others."""
        mine: LinearStack | None = getattr(self._own, "stack", None)
        if mine is None or mine.width != width or mine.clients < clients:
            mine = self._own.stack = LinearStack(self.layers, clients, width, self.train_x.device)
        return mine

    def _train_chunk(
        self, step: LocalStep, stack: LinearStack, index: Tensor, shares: Tensor, left: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Take these steps; ``left`` says how many each client has, from here on. Their losses ``[step, client]``."""
        index, shares = index.to(self.train_x.device), shares.to(self.train_x.device)
        answers = self.train_y[index].unsqueeze(2)
        wanted = shares.new_zeros(*index.shape[:2], self.layers[-1].outputs, stack.width)
        wanted.scatter_(2, answers, -shares.unsqueeze(2))
        needs_loss = LOCALS.get(self.local.kind).needs_loss
        log_p = torch.zeros_like(wanted)
        working = (left > np.arange(len(index))[:, None]).sum(1)
        ends = [*np.flatnonzero(np.diff(working)) + 1, len(index)]
        for start, end in zip([0, *ends], ends, strict=False):
            n, here = int(working[start]), slice(start, end)
            gradient = stack.gradient(n)
            columns = (
                index[here, :n].reshape(end - start, -1),
                wanted[here, :n],
                shares[here, :n].unsqueeze(2),
                log_p[here, :n],
            )
            for i in range(end - start):  # unbind would make thousands of tensors, and the garbage collector run
                rows, right, share, found = [column[i] for column in columns]
                k = step.steps % 2
                torch.index_select(self.train_x, 0, rows, out=gradient.x)
                gradient(right, share, found, k)
                loss = (found * right).sum((1, 2)) if needs_loss else None
                step.step(gradient.grads[k], loss)
        return -(log_p.gather(2, answers).squeeze(2).double() * shares).sum(2).cpu().numpy()

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
        asked, own = partition.asked()
        rows = torch.from_numpy(asked).to(self.train_x.device)
        outputs = self._outputs(sent.weights.to(self.train_x.device), self.train_x.index_select(0, rows))
        right = (outputs.argmax(1) == self.train_y.index_select(0, rows)).cpu()
        return [float(right[i].double().mean()) for i in map(torch.from_numpy, own)]

    def close(self) -> None:
        """End the workers and give torch its threads back."""
        if self._pool is not None:
            self._pool.shutdown()
        torch.set_num_threads(self._threads)
