"""The optimizers and the losses of one thread, while a client that knows nothing of it trains.

Torch lets hooks be called before and after every step of every optimizer; a loss is seen where ``backward`` is called
on it. Both are in place only as long as somebody watches, and act only in the threads that do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_lock = threading.Lock()
_watching: dict[int, Watch] = {}  # thread → who watches it
_handles: list[Any] = []
_backward = torch.Tensor.backward


class Watch:
    """Sets ``rate`` on whatever steps. ``losses`` are what was minimised, in order; ``steps`` is how often.

    The largest rate of the first optimizer that steps, as it was built, stands for ``rate``: other parameter groups,
    other optimizers and the client's own schedule (warm-up, cosine) keep their ratio to it. An optimizer shows ours
    during a step only, so that a schedule of the client's own never sees it.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self._base: float | None = None
        self._theirs: list[Any] = []
        self._losses: list[torch.Tensor] = []

    @property
    def losses(self) -> list[float]:
        """As numbers; asked for once, at the end, because each may have to come from a GPU."""
        return [float(loss) for loss in self._losses]

    def before_step(self, optimizer: Optimizer) -> None:
        """Put our rate in."""
        groups = optimizer.param_groups
        self._base = _as_built(optimizer) if self._base is None else self._base
        self._theirs = [group["lr"] for group in groups]
        if self._base > 0:
            self.steps += 1
            for group, theirs in zip(groups, self._theirs, strict=True):
                group["lr"] = theirs * (self.rate / self._base)

    def after_step(self, optimizer: Optimizer) -> None:
        """Put the client's back."""
        for group, theirs in zip(optimizer.param_groups, self._theirs, strict=True):
            group["lr"] = theirs

    def saw(self, loss: torch.Tensor) -> None:
        """A loss that is being minimised."""
        if loss.numel() == 1:
            self._losses.append(loss.detach())


def _as_built(optimizer: Optimizer) -> float:
    """The rate before a schedule touched it: a warm-up begins at 0."""
    rates = [group.get("max_lr", group.get("initial_lr", group.get("lr", 0.0))) for group in optimizer.param_groups]
    largest = max(map(float, rates), default=0.0)
    return largest if largest > 0 else float(optimizer.defaults.get("lr", 0.0))


@contextmanager
def watching(rate: float) -> Iterator[Watch]:
    """Watch this thread."""
    watch, thread = Watch(rate), threading.get_ident()
    with _lock:
        if not _watching:
            _install()
        _watching[thread] = watch
    try:
        yield watch
    finally:
        with _lock:
            del _watching[thread]
            if not _watching:
                _remove()


def _install() -> None:
    def before(optimizer: Optimizer, *_: Any) -> None:
        if watch := _watching.get(threading.get_ident()):
            watch.before_step(optimizer)

    def after(optimizer: Optimizer, *_: Any) -> None:
        if watch := _watching.get(threading.get_ident()):
            watch.after_step(optimizer)

    def backward(tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        if watch := _watching.get(threading.get_ident()):
            watch.saw(tensor)
        return _backward(tensor, *args, **named)  # type: ignore[no-untyped-call]

    _handles[:] = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]


def _remove() -> None:
    for handle in _handles:
        handle.remove()
    torch.Tensor.backward = _backward  # type: ignore[method-assign]
