"""Worker processes: each owns an ordinary engine with one worker, and trains whole pieces of a round.

Threads of one interpreter share its lock; where a step is mostly Python they wait for each other, and more cores make
it worse (``choice.py`` says when). Processes do not wait. What they cost is kept off the road:

    memory  Data, weights and replies lie in one block without a name that all processes map; through the pipes go
            numbers of examples and a few scalars. However a process ends, nothing is left behind.
    start   The caller's own engine trains until the workers are ready, and they are not started before it has done so
            for ``PATIENCE`` seconds: a short run pays nothing.
    fork    On Linux one clean process imports torch, makes the engine and is forked: a worker that was killed is
            replaced in milliseconds, and all share its pages. (Not the caller: it has threads, whose locks would be
            copied locked.) Elsewhere every worker is a fresh interpreter. Neither runs the caller's ``__main__``.
    end     A worker whose parent is gone ends. Signals from a keyboard are for the caller.

A piece is trained by the same code on the same numbers wherever that happens, and replies come in the order of tasks:
the bits are those of one process, also when a worker was killed and another trained its piece again.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

from fedhyper.errors import UserError
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.engines.base import ClientTask, Divisible, Reply, Sent
from fedhyper.sim.engines.memory import Block, Build

PATIENCE = 2.0  # seconds of training before workers are started: about what starting them costs
TRIES = 3  # workers that one piece may cost before the run ends


class ProcessEngine:
    """``own`` trains what is too small to share, and evaluates; ``workers`` processes train the rest.

    build     makes the engine of a worker; it, and what it holds, must be importable there
    patience  seconds, see ``PATIENCE``; 0: start in the first round, and wait until all are ready
    start     "fork" from a clean process, or "spawn" a fresh interpreter each

    ``problem`` says why there are no worker processes after all; "" as long as there may be.
    """

    def __init__(
        self,
        own: Divisible,
        build: Build,
        workers: int,
        *,
        patience: float = PATIENCE,
        start: Literal["fork", "spawn"] = "fork" if sys.platform == "linux" else "spawn",
    ) -> None:
        self.problem = ""
        self._own, self._build, self._count, self._start = own, build, workers, start
        self._patience, self._trained = patience, 0.0
        self._block: Block | None = None
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._calls = self._call = self._deaths = 0
        self._forker: socket.socket | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _kill, self._processes)  # also for whoever forgets to close

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready."""
        return [worker.pid for worker in self._workers if worker.pid]

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """Replies in the order of ``tasks``. Pieces are handed out in theirs: tasks come longest first."""
        pieces = self._own.pieces(tasks, self._count)
        if len(pieces) > 1 and not self._call and (block := self._ready(sent)):
            self._calls += 1
            self._call = self._calls
            try:
                yield from self._share_out(block, tasks, sent, pieces)
            finally:  # what workers are still at, if the caller has left, is thrown away when it is done
                self._call = 0
            return
        started = time.perf_counter()
        yield from self._own.train(tasks, sent)
        if len(pieces) > 1:
            self._trained += time.perf_counter() - started

    def _share_out(
        self, block: Block, tasks: Sequence[ClientTask], sent: Sent, pieces: list[Sequence[int]]
    ) -> Iterator[Reply]:
        for place, part in zip(block.sent, (sent.weights, sent.buffers, sent.counters, sent.delta), strict=True):
            if part is not None:
                place.copy_(part)
        todo, left, done, lost = deque(range(len(pieces))), set(range(len(pieces))), dict[int, Reply](), Counter[int]()
        for position in range(len(tasks)):
            while True:
                for worker in self._workers:
                    if todo and worker.idle and block.free:
                        number = todo.popleft()
                        work = [tasks[i] for i in pieces[number]]
                        worker.give(
                            self._call, number, block, (work, sent.local_lr, sent.delta is not None, sent.cohort)
                        )
                if position in done and not todo:  # nobody waits for work
                    break
                for number, replies in self._answers(block, timeout=0 if position in done else None):
                    if replies:
                        done.update(zip(pieces[number], replies, strict=True))
                        left.remove(number)
                    else:
                        todo.appendleft(number)
                        lost[number] += 1
                        if lost[number] == TRIES:
                            raise UserError(_killed([tasks[i].client for i in pieces[number]]))
                if not self._workers:  # they could not be started again
                    for number in sorted(left):
                        trained = self._own.train_piece([tasks[i] for i in pieces[number]], sent)
                        done.update(zip(pieces[number], trained, strict=True))
                    left.clear()
                if position in done:
                    break
            reply = done.pop(position)
            few = len(block.free) < 2 * self._count
            yield reply._replace(delta=reply.delta.clone(), buffers=reply.buffers.clone()) if few else reply

    def _answers(self, block: Block, *, timeout: float | None) -> Iterator[tuple[int, list[Reply]]]:
        """What workers say within ``timeout`` seconds: a piece of this call and its replies; none: the worker died."""
        for key, _ in self._selector.select(timeout) if self._workers else ():
            worker: _Worker = key.data
            kind, answer = worker.listen()
            if kind == "failed":
                return self._give_up(answer)
            mine = worker.call == self._call != 0
            if worker.call and not (mine and kind == "done"):
                block.free.append(worker.slot)
            worker.call = 0
            if kind == "ready":
                worker.pid, self._deaths = answer, 0
            elif kind == "done" and mine:
                yield worker.piece, block.replies(worker.slot, answer)
            elif kind == "error" and mine:
                raise answer
            elif kind == "dead":
                self._replace(worker)
                if not self._workers:
                    return None
                if mine:
                    yield worker.piece, []
        return None

    def _ready(self, sent: Sent) -> Block | None:
        """The block, if most workers wait for work; they are started when it is time."""
        if self.problem or self._trained < self._patience:
            return None
        if self._block is None:
            try:
                self._block = Block.make(self._build, sent, 3 * self._count, self._own.largest)
            except Exception as error:  # a lambda, a class made in a function: whatever pickle refuses
                self._give_up(f"{type(error).__name__}: {error}")
                return None
            for _ in range(self._count):
                self._launch(self._block)
        list(self._answers(self._block, timeout=0))
        while self._patience == 0 and not all(worker.pid for worker in self._workers):
            list(self._answers(self._block, timeout=None))
        return self._block if 2 * sum(worker.idle for worker in self._workers) >= max(2, self._count) else None

    def _launch(self, block: Block) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            if self._start == "spawn":
                self._processes.append(_python("work", theirs, block))
            else:
                if self._forker is None or self._processes[-1].poll() is not None:
                    if self._forker is not None:
                        self._forker.close()
                    self._forker, other = socket.socketpair()
                    with other:
                        self._processes.append(_python("fork", other, block))
                with suppress(OSError):  # has it died just now, then so does this worker, and both are replaced
                    socket.send_fds(self._forker, [b"."], [theirs.fileno()])
        worker = _Worker(Connection(ours.detach()))
        self._workers.append(worker)
        self._selector.register(worker.pipe, selectors.EVENT_READ, worker)

    def _replace(self, worker: _Worker) -> None:
        self._drop(worker)
        self._deaths += 1
        if self._block is None or self._deaths > TRIES * self._count:  # since the last one that became ready
            self._give_up("they die before they are ready")
        else:
            self._launch(self._block)

    def _give_up(self, why: str) -> None:
        self.problem = f"clients without worker processes, which could not be started: {why}"
        self._end()

    def _drop(self, worker: _Worker) -> None:
        self._selector.unregister(worker.pipe)
        worker.pipe.close()
        self._workers.remove(worker)

    def _end(self) -> None:
        for worker in list(self._workers):
            self._drop(worker)
        if self._forker is not None:
            self._forker.close()
        self._forker = None
        _kill(self._processes)

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """The own engine's."""
        return self._own.evaluate(sent)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """The own engine's."""
        return self._own.accuracy_by_client(sent, partition)

    def close(self) -> None:
        """End the processes, whatever they are at."""
        self._end()
        self._own.close()


class _Worker:
    """One process as its owner sees it. No ``pid``: it is not ready; ``call`` 0: it has nothing to do."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.pid, self.call, self.piece, self.slot = pipe, 0, 0, 0, 0

    @property
    def idle(self) -> bool:
        return bool(self.pid and not self.call)

    def give(self, call: int, piece: int, block: Block, work: tuple[Any, ...]) -> None:
        self.call, self.piece, self.slot = call, piece, block.free.pop()
        with suppress(OSError):  # it is dead, which is noticed where it is listened to
            self.pipe.send((self.slot, *work))

    def listen(self) -> tuple[str, Any]:
        try:
            said: tuple[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            return "dead", None
        return said


def _python(what: str, end: socket.socket, block: Block) -> subprocess.Popen[bytes]:
    """A fresh interpreter in which ``what`` of worker.py runs, and which finds modules where this one does."""
    code = f"import sys; sys.path[:] = {sys.path!r}\nfrom fedhyper.sim.engines.worker import {what}\n"
    code += f"{what}({end.fileno()}, *{block.numbers!r})"
    single = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=(end.fileno(), block.numbers[0]),
        stdin=subprocess.DEVNULL,
        env=os.environ | single,
    )


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # those it has forked have lost their parent, and end
        process.wait()
    processes.clear()


def _killed(clients: Sequence[int]) -> str:
    which = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
    return (
        f"{TRIES} worker processes in a row were killed while they trained client {which}; "
        "if the machine runs out of memory, use fewer workers, or --workers 1"
    )
