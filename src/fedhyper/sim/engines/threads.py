"""One client a thread: each worker owns a model on flat buffers, and torch runs single-threaded inside it.

ATen releases the GIL, so two Python threads use two cores as two processes would, without copies or pickling. One torch
thread per worker also makes results independent of any thread count.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from fedhyper.client.vectors import FlatModel
from fedhyper.sim.data.objectives import Objective, mean_score
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.data.tasks import Task
from fedhyper.sim.engines.base import ClientTask, Reply, Sent, gather, scatter
from fedhyper.sim.local.step import Start, make_step
from fedhyper.sim.methods import Local

_EVAL_BATCH = 500
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h


def keep_freed_memory() -> None:
    """Ask glibc not to return what is freed: activations come and go every step, and each return costs page faults.

    CPU time a round with / without, in paired processes on a busy machine: LSTM 0.73, 0.83, 0.91; ResNet-18 0.85 (one
    pair); CL on stacked clients 0.66, 0.75; W1's CNN 0.79 to 1.20, median 0.95 of eight. Peak memory up to + 28 %.
    It holds for the whole process; ``FEDHYPER_MALLOPT=0`` leaves malloc alone. Without glibc nothing happens.
    """
    if os.environ.get("FEDHYPER_MALLOPT") == "0" or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes in one thread: a sum split among several has other bits. Parallel are the clients.

    Around every round, not once: another simulation that ends meanwhile gives torch its threads back.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Data:
    """Inputs resident on the device in the order in which convolutions read them, rows of one example each."""

    def __init__(self, x: Tensor, y: Tensor, device: torch.device, dtype: torch.dtype) -> None:
        images = x.ndim == 4
        # [n, h, w, c]: taking rows and permuting gives true channels-last strides, also for one channel, where
        # contiguous(memory_format=channels_last) does nothing and convolutions fall back to the slow layout.
        rows = x.permute(0, 2, 3, 1).contiguous() if images else x
        self.rows = rows.to(device, dtype if x.is_floating_point() else x.dtype)
        self.y, self._images = y.to(device), images

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.rows.index_select(0, index)
        return (x.permute(0, 3, 1, 2) if self._images else x), self.y.index_select(0, index)


def copies(model: nn.Module, count: int, device: torch.device, dtype: torch.dtype) -> list[nn.Module]:
    """``count`` models that train apart; what is frozen they have in common, and with ``model`` if it is there already.

    A pretrained body of 22 million numbers is held once, not once a worker.
    """
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    for key, p in frozen.items():
        kind = dtype if p.is_floating_point() else p.dtype
        if (p.device, p.dtype) != (device, kind):
            frozen[key] = nn.Parameter(p.detach().to(device, kind), requires_grad=False)
    return [copy.deepcopy(model, dict(frozen)).to(device, dtype) for _ in range(count)]


class _Worker:
    """A model on flat buffers, allocated once."""

    def __init__(self, model: nn.Module, local: Local, objective: Objective) -> None:
        self.objective = objective
        self.model = model
        self.flat = FlatModel(self.model, channels_last=True)
        self.local = local

    def load(self, sent: Sent) -> None:
        self._copy(sent.weights, self.flat.weights, to_standard=False)
        self.flat.buffers.copy_(sent.buffers)
        scatter(sent.counters, list(self.flat.counters.values()))

    def _copy(self, source: Tensor, target: Tensor, *, to_standard: bool) -> Tensor:
        """Between the standard layout (server) and this worker's, where 4-D weights are O, H, W, C."""
        for piece in self.flat.pieces:
            here = slice(piece.start, piece.start + piece.shape.numel())
            if to_standard:
                target[here].view(piece.shape).copy_(piece.view(source))
            else:
                piece.view(target).copy_(source[here].view(piece.shape))
        return target

    def train(self, task: ClientTask, sent: Sent, data: _Data) -> Reply:
        self.load(sent)
        self.model.train()
        flat = self.flat
        delta = None
        if sent.delta is not None:
            delta = self._copy(sent.delta, torch.empty_like(flat.weights), to_standard=False)
        start = Start(sent.local_lr, len(task.batches), task.epoch_steps, delta, sent.cohort)
        step = make_step(self.local, flat.weights, start)
        losses = []
        flat.zero_grad()
        for k, batch in enumerate(task.batches):
            x, y = data.batch(torch.from_numpy(batch).to(data.y.device))
            loss = self.objective.loss(self.model(task.seen(x, k)), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            step.step(flat.grad, losses[-1])
            flat.swap()  # CL compares with the gradient before: two buffers take turns, no copy
        return Reply.of(
            task,
            step.rates(),
            delta=sent.weights - self._copy(flat.weights, torch.empty_like(sent.weights), to_standard=True),
            buffers=flat.buffers.float().cpu().clone(),
            counters=gather(list(flat.counters.values()), torch.int64),
            first_loss=losses[0],
            mean_loss=sum(losses) / len(losses),
        )

    @torch.no_grad()
    def score(self, data: _Data, index: Tensor) -> tuple[float, Tensor]:
        """Summed loss of the examples, and the score of each."""
        self.model.eval()
        x, y = data.batch(index)
        outputs = self.model(x).float()
        return self.objective.summed_loss(outputs, y), self.objective.score(outputs, y)


class ThreadEngine:
    """Trains any model; a client's whole local training is one piece of work for one worker."""

    largest = 1

    def __init__(
        self, *, model: nn.Module, task: Task, local: Local, workers: int, device: str, dtype: torch.dtype
    ) -> None:
        keep_freed_memory()
        place = torch.device(device)
        self._train = _Data(task.train_x, task.train_y, place, dtype)
        self._test = _Data(task.test_x, task.test_y, place, dtype)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers = [_Worker(own, local, task.objective) for own in copies(model, workers, place, dtype)]
        for worker in self._workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(workers)

    def pieces(self, tasks: Sequence[ClientTask], workers: int) -> list[Sequence[int]]:
        """One client each."""
        return [[i] for i in range(len(tasks))]

    def train_piece(self, tasks: Sequence[ClientTask], sent: Sent) -> list[Reply]:
        """One client, in the thread that asks."""
        return [self._train_one(task, sent) for task in tasks]

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """Replies in the order of ``tasks``; a few are in flight, so memory does not grow with the cohort."""
        waiting: deque[Future[Reply]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(self._train_one, task, sent))
                if len(waiting) > 2 * len(self._workers):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # a caller that has left: nobody wants the rest, and Python would finish it before it ends
            for future in waiting:
                future.cancel()

    def _train_one(self, task: ClientTask, sent: Sent) -> Reply:
        worker = self._idle.get()
        try:
            return worker.train(task, sent, self._train)
        finally:
            self._idle.put(worker)

    def _scores(self, sent: Sent, data: _Data, asked: Tensor) -> tuple[float, Tensor]:
        """Summed loss and scores of these examples, in batches of a fixed size shared among the workers."""
        for worker in self._workers:
            worker.load(sent)

        def one(start: int) -> tuple[float, Tensor]:
            worker = self._idle.get()
            try:
                return worker.score(data, asked[start : start + _EVAL_BATCH].to(data.y.device))
            finally:
                self._idle.put(worker)

        parts = list(self._pool.map(one, range(0, len(asked), _EVAL_BATCH)))
        return sum(loss for loss, _ in parts), torch.cat([scores for _, scores in parts])

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """Mean loss and mean score on the test set."""
        loss, scores = self._scores(sent, self._test, torch.arange(len(self._test.y)))
        return loss / len(scores), mean_score(scores)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """The mean score on each client's own training examples."""
        asked, own = partition.asked()
        scores = self._scores(sent, self._train, torch.from_numpy(asked))[1].cpu()
        return [float(scores[i].double().mean()) for i in map(torch.from_numpy, own)]

    def close(self) -> None:
        """End the workers and give torch its threads back."""
        self._pool.shutdown()
        torch.set_num_threads(self._threads)
