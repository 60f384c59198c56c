"""``--track NAME``: every round's numbers to an experiment tracker, and to the functions of ``fedhyper.log``.

A tracker is a context manager of ten lines that is given the run and yields ``log(t, numbers)``. It tells its service
which run this is, so that a run that continues goes on where it was. One that fails is dropped with a note: training
does not depend on it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import fedhyper
from fedhyper.errors import UserError, did_you_mean, printable

if TYPE_CHECKING:
    from fedhyper.lab.running.progress import Listener, Record, Summary
    from fedhyper.lab.running.run import Run

PROJECT = "fedhyper"
Log = Callable[[int, dict[str, float]], Any]


def _name(run: Run) -> str:
    return "-".join(run.out.resolve().parts[-2:])


def _id(run: Run) -> str:
    return hashlib.blake2b(str(run.out.resolve()).encode(), digest_size=8).hexdigest()


@contextmanager
def _tensorboard(run: Run) -> Iterator[Log]:
    """Files in the run directory's ``tensorboard/``; rounds computed again replace those that were written."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.out / "tensorboard"), purge_step=run.round + 1) as writer:

        def add(t: int, numbers: dict[str, float]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, t)

        yield add


@contextmanager
def _wandb(run: Run) -> Iterator[Log]:
    """Where ``wandb login`` or WANDB_MODE say; offline files go to the run directory's ``wandb/``."""
    import wandb

    settings = run.config.values()
    place = {"project": PROJECT, "name": _name(run), "id": _id(run), "dir": str(run.out), "resume": "allow"}
    with wandb.init(**place, config=settings) as handle:
        yield lambda t, numbers: handle.log(numbers, step=t)


@contextmanager
def _mlflow(run: Run) -> Iterator[Log]:
    """Where MLFLOW_TRACKING_URI says."""
    import mlflow

    experiment = mlflow.set_experiment(PROJECT).experiment_id
    mine = f"tags.fedhyper_run = '{_id(run)}'"
    known = mlflow.MlflowClient().search_runs([experiment], mine, max_results=1)
    which = {"run_id": known[0].info.run_id} if known else {"run_name": _name(run), "tags": {"fedhyper_run": _id(run)}}
    with mlflow.start_run(**which):
        if not known:
            mlflow.log_params(run.config.values())
        yield lambda t, numbers: mlflow.log_metrics(numbers, step=t)


@contextmanager
def _trackio(run: Run) -> Iterator[Log]:
    """A local database, or the Space that TRACKIO_SPACE_ID names."""
    import trackio

    handle = trackio.init(project=PROJECT, name=_name(run), config=run.config.values(), resume="allow")
    try:
        yield lambda t, numbers: handle.log(numbers, step=t)
    finally:
        handle.finish()


TRACKERS: dict[str, Callable[[Run], AbstractContextManager[Log]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a name that is not known, and one whose package is not there, before anything is computed."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--track {printable(name)} is not known; {did_you_mean(name, TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def prepare_trackers(names: Sequence[str]) -> None:
    """Make once what the cells of a sweep would all make at the same time: mlflow's tables."""
    if "mlflow" in names:
        import mlflow

        try:
            mlflow.set_experiment(PROJECT)
        except Exception as error:
            raise UserError(f"--track mlflow: {_said(error)}") from error


class Tracking:
    """Passes everything on to ``inner``, and each round's numbers to the trackers and the functions on the way."""

    def __init__(self, inner: Listener, names: Sequence[str]) -> None:
        check_trackers(names)
        self.inner, self.names = inner, names
        self._open: dict[str, tuple[Log, ExitStack]] = {}

    def start(self, run: Run) -> None:
        """Open every tracker."""
        for name in self.names:
            with ExitStack() as stack:
                try:
                    opened = stack.enter_context(TRACKERS[name](run))
                except Exception as error:  # whatever it is in the code of others
                    raise UserError(f"--track {name}: {_said(error)}") from error
                self._open[name] = opened, stack.pop_all()
        self.inner.start(run)

    def round(self, run: Run, record: Record) -> None:
        """The record's numbers, as those of its round."""
        numbers = {k: v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        t = int(numbers.pop("round"))
        for name, (opened, _) in list(self._open.items()):
            try:
                opened(t, numbers)
            except Exception as error:
                del self._open[name]
                self.inner.note(f"--track {name} failed in round {t} and is left out: {_said(error)}")
        for function in fedhyper.LISTENERS:
            function(str(run.out), record)
        self.inner.round(run, record)

    def note(self, text: str) -> None:
        """Notes are for people: passed on, not tracked."""
        self.inner.note(text)

    def end(self, run: Run, summary: Summary) -> None:
        """Bring the last numbers to where they belong."""
        for name, (_, stack) in self._open.items():
            try:
                stack.close()
            except Exception as error:
                self.inner.note(f"--track {name} could not be closed: {_said(error)}")
        self.inner.end(run, summary)


def _said(error: Exception) -> str:
    return printable(" ".join(f"{type(error).__name__}: {error}".split()))
