"""A run as a checkpoint file, written beside the run: what a state is made of never changes, so a thread may write it
while the clients train. The next round waits for it, so that no state is held longer than it would be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedhyper.errors import CheckpointRefused
from fedhyper.flower import last_good
from fedhyper.flower.inner import nesting, stepping
from fedhyper.flower.records.layout import Arrays, views
from fedhyper.flower.run import Run
from fedhyper.loop import LoopState
from fedhyper.storage import checkpoint
from fedhyper.storage.checkpoint import from_plain, to_plain
from fedhyper.storage.record import RoundRecord
from fedhyper.storage.restoring import check_state

_KIND = "flower"


class Saver:
    """``path`` is replaced every so many rounds. ``seed`` is what a run must agree on to go on from it, beside what it
    is made of."""

    def __init__(self, path: Path | None, every: int, seed: int | None) -> None:
        self.path, self.every, self.seed = path, every, seed
        self._saved = 0  # the round
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, run: Run, history: list[RoundRecord], *, due: bool = False) -> None:
        """Begin to write this state, if it is time to, or ``due`` and newer than the file."""
        self.wait()
        t = run.state.round
        if self.path is None or t == self._saved or not (due or t % self.every == 0):
            return
        tensors: dict[str, NDArray[Any]] = {}
        values = {
            "kind": _KIND,
            "identity": self._identity(run),
            "round": t,
            "loop": to_plain(run.state, tensors, "loop"),
            "counters": to_plain(run.counters, tensors, "counters"),
            "memory": to_plain(stepping.memory(run.strategy), tensors, "memory"),
            "loss_key": run.losses.key,
            "heard": run.heard,
            "private": None if run.private is None else list(run.private.spent),
            "history": list(history),
        }
        self._saved = t
        self._thread = threading.Thread(target=self._write, args=(self.path, tensors, values), name="fedhyper-save")
        self._thread.start()

    def _write(self, path: Path, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        try:
            checkpoint.save(path, tensors, values)
        except BaseException as error:  # whoever waits is told
            self._error = error

    def wait(self) -> None:
        """Until the file is whole; what went wrong with it is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Whatever ended the run, the file is whole; what ended it goes before an error in writing."""
        with contextlib.suppress(BaseException) if kind is not None else contextlib.nullcontext():
            self.wait()

    def resume(self, run: Run) -> list[RoundRecord]:
        """Let ``run`` go on from the file; the history comes back. CheckpointRefused names the first difference."""
        assert self.path is not None
        path = self.path
        tensors, values = checkpoint.load(path)
        if values.get("kind") != _KIND:
            raise CheckpointRefused(f"{path}: not the checkpoint of a Flower run")
        theirs = values.get("identity", {})
        for key, value in self._identity(run).items():
            if theirs.get(key) != value:
                raise CheckpointRefused(f"{path}: {key} was {_short(theirs.get(key))} and now is {_short(value)}")
        try:
            state: LoopState = from_plain(values["loop"], tensors, run.state)
            like = run.state
            if last_good.is_folded(state) and isinstance(state.before, dict):
                like = like._replace(good=like.good._replace(weights=0.0))
            check_state(state, _by_now(like, state, run.layout.trained))
            counters: Arrays = from_plain(values["counters"], tensors)
            record = run.layout.packed(state.now, counters)
            if record is None:
                raise ValueError("its arrays are not the model's")
            run.layout.fit(views(record))
            memory, run.losses.key = from_plain(values["memory"], tensors), values["loss_key"]
            run.heard = values["heard"]
            history = list(values["history"])
            if run.private is not None:
                run.private.resume(values["private"], lost=self.every)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointRefused(f"{path}: the checkpoint's content is not a run's state: {error}") from error
        run.state, run.offset, self._saved = state, state.round, state.round
        run.send(record)
        stepping.remember(run.strategy, memory)
        return history

    def _identity(self, run: Run) -> dict[str, Any]:
        layout = run.layout
        return {
            "seed": self.seed,
            "norm_cap": run.norm_cap,
            "privacy": None if run.private is None else repr(run.private.terms),
            "schedule": repr((run.plan, run.client_rule)),
            "strategy": "/".join(type(one).__name__ for one in nesting.chain(run.strategy)),
            "arrays": {name: [str(layout.dtypes[name]), *shape] for name, shape in layout.shapes.items()},
            "trained": list(layout.trained),
        }


def _by_now(like: Any, value: Any, names: Sequence[str]) -> Any:
    """``like``, a state before its first round, in the form that ``value`` may have: what was the number 0 is a vector
    in named pieces, or in coordinates, and an array may have become wider than the model's."""
    if hasattr(like, "_fields") and type(value) is type(like):
        return type(like)(*(_by_now(a, b, names) for a, b in zip(like, value, strict=True)))
    if isinstance(like, tuple) and isinstance(value, tuple) and len(like) == len(value):
        return tuple(_by_now(a, b, names) for a, b in zip(like, value, strict=True))
    if isinstance(like, dict) and isinstance(value, dict):
        return {name: _by_now(array, value.get(name), names) for name, array in like.items()}
    if isinstance(like, float) and isinstance(value, dict):
        return dict.fromkeys(names, 0.0)
    if isinstance(like, float) and isinstance(value, list):
        return [0.0, 0.0]
    wider = hasattr(like, "dtype") and hasattr(value, "dtype") and value.dtype != like.dtype
    return 0.0 if wider and value.shape == like.shape else like


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
