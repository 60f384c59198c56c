"""SIGINT and SIGTERM: the first asks for an orderly end, the second gets one at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from fedhyper.errors import UserError

GRACE = 3.0  # seconds a round may still take after the signal; with the checkpoint it stays under 5


class Interrupted(UserError):
    """A signal ended the work; ``exit_code`` is 128 + its number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class AbandonRound(BaseException):
    """Raised inside a round that would take too long. Not an Exception: nothing on the way may swallow it."""


class Signals:
    """While open, signals are noted in ``received`` instead of ending the process.

    Outside ``training()`` nothing is raised, so no file is left half written. Inside, a round that is not over
    after ``GRACE`` seconds is abandoned. In a thread that is not the main one Python delivers no signals and
    this does nothing.
    """

    def __init__(self) -> None:
        self.received = 0
        self._training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._give_up)
        return self

    def __exit__(self, *_: object) -> None:
        if self.received and self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        """A round: it may be abandoned."""
        self._training = True
        try:
            yield
        finally:
            self._training = False

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)
        self.received = number
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    def _give_up(self, _: int, __: FrameType | None) -> None:
        if self._training:
            raise AbandonRound
