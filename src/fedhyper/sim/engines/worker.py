"""What a worker process runs: an ordinary engine with one worker, told by a pipe which clients to train."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from fedhyper.sim.engines.base import ClientTask, Divisible, Sent
from fedhyper.sim.engines.memory import Block

_WATCH = 0.5  # seconds between two looks whether the parent is still there


def fork(end: int, *numbers: Any) -> None:
    """Make an engine, and fork a worker for every descriptor that comes; until ``end`` is closed on the other side."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    serve = _prepare(Block(*numbers))
    with socket.socket(fileno=end) as parent:
        while pipes := socket.recv_fds(parent, 1, 1)[1]:
            if not os.fork():
                parent.close()
                serve(Connection(pipes[0]))
                os._exit(0)
            os.close(pipes[0])


def work(end: int, *numbers: Any) -> None:
    """Make an engine and serve with it."""
    _prepare(Block(*numbers))(Connection(end))


def _prepare(block: Block) -> Callable[[Connection], None]:
    for number in (signal.SIGINT, signal.SIGTERM):  # for the caller, who may want to finish its round
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        engine = block.unpack()()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return lambda pipe: pipe.send(("failed", why))
    return lambda pipe: _serve(pipe, engine, block)


def _serve(pipe: Connection, engine: Divisible, block: Block) -> None:
    threading.Thread(target=_watch, args=[os.getppid()], daemon=True).start()
    weights, buffers, counters, delta = block.sent
    with suppress(EOFError, OSError):  # the caller is gone
        pipe.send(("ready", os.getpid()))
        while True:
            slot, tasks, local_lr, with_delta, cohort = pipe.recv()
            sent = Sent(weights, buffers, counters, local_lr, delta if with_delta else None, cohort)
            pipe.send(_answer(engine, block.slot(slot), tasks, sent))


def _answer(engine: Divisible, slot: list[Tensor], tasks: Sequence[ClientTask], sent: Sent) -> tuple[str, Any]:
    told = []
    try:
        for row, reply in enumerate(engine.train_piece(tasks, sent)):
            for part, rows in zip(reply[2:5], slot, strict=True):
                rows[row].copy_(part)
            told.append((*reply[:2], *reply[5:]))
    except Exception as error:
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:
            return "error", RuntimeError(traceback.format_exc())
        return "error", error
    return "done", told


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)
