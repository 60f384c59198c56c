"""One experiment, from its config to a finished run directory: started, continued, interrupted, in the same bits.

A round is a transaction: it is computed, its record is appended to ``metrics.jsonl``, and only then may a
checkpoint be taken, which holds the length of that file. Whatever a kill leaves after the last checkpoint is cut
off when the run continues, and computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import fedhyper
from fedhyper.errors import CheckpointRefused, TrainingStopped
from fedhyper.lab.config.identity import config_hash
from fedhyper.lab.config.model import Config
from fedhyper.lab.running.build import library_version, make_simulation, validation_set
from fedhyper.lab.running.directory import RunDirectory
from fedhyper.lab.running.interrupt import AbandonRound, Interrupted, Signals
from fedhyper.lab.running.opening import known_config, open_run
from fedhyper.lab.running.progress import Listener, Progress, Record, Silent, Summary
from fedhyper.storage.files import disk_errors, replace
from fedhyper.storage.record import finite

if TYPE_CHECKING:
    from fedhyper.sim.simulation import Simulation

CHECKPOINT_SHARE = 0.02  # of the time, at checkpoint_every = 0


class Run:
    """A run directory and the simulation that fills it. ``step()`` until ``over``, then ``finish()``."""

    def __init__(
        self,
        config: Config,
        out: Path,
        *,
        resume: bool = False,
        fresh: bool = False,
        workers: int | None = None,
        device: str = "cpu",
        make: Callable[..., Simulation] = make_simulation,
        engine: str = "simulator",
    ) -> None:
        self.config, self.out = config, Path(out)
        self.progress = Progress(config.target_accuracy)
        self.summary: Summary = {}  # as it was last written
        self._abandoned = False
        if resume and not self.out.exists():
            raise CheckpointRefused(f"there is nothing to resume in {self.out}; leave --resume out to start")
        self.files = RunDirectory(self.out)
        try:
            if fresh:
                self.files.refuse_others()
            known = None if fresh else known_config(self.files, config, resume, engine)
            self.sim = make(config, workers=workers, device=device)
            if fresh:  # not before: a config whose data or model cannot be made must not cost the run that is there
                self.files.discard()
            self.notes = open_run(self.files, config, self.sim, self.progress, known, engine)
        except BaseException:
            self.files.abandon()
            raise
        self._saved_round, self._saved_at, self._save_seconds = self.round, time.perf_counter(), 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()
        if not self._abandoned:  # else it would wait for clients that are still being trained
            self.sim.close()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.progress.rounds

    @property
    def over(self) -> str | None:
        """Why there is nothing left to do, or None."""
        config, progress = self.config, self.progress
        if max(self.sim.idle_rounds, progress.rollbacks) >= config.max_bad_rounds:
            return "diverged"
        if progress.rounds >= config.rounds:
            return "rounds"
        if config.stop_at_target and progress.rounds_to_target is not None:
            return "target"
        if config.patience and progress.since_best >= config.patience:
            return "patience"
        return None

    def begin(self) -> None:
        """Say on disk that the run is under way."""
        self._write_summary("running")

    def step(self, signals: Signals | None = None) -> Record:
        """One round, recorded, and a checkpoint when one is due."""
        t, config = self.round + 1, self.config
        evaluate = t % config.eval_every == 0 or t == config.rounds
        before = self.sim.state()
        try:
            if signals is None:
                record = self._train(evaluate)
            else:
                with signals.training():
                    record = self._train(evaluate)
        except AbandonRound:
            self._abandoned = True
            self.sim.restore(*before)
            raise
        self.files.append_metrics(record)
        self.progress.add(record)
        if self._checkpoint_due():
            self.checkpoint()
        return record

    def _train(self, evaluate: bool) -> Record:
        record: Record = {**self.sim.run_round(evaluate=evaluate)}
        if evaluate and self.config.client_metrics:
            started = time.perf_counter()
            record["client_accuracy"] = self.sim.client_accuracy()
            record["seconds_evaluate"] += time.perf_counter() - started
        if self.config.validation:
            started = time.perf_counter()
            held = self.sim.client_accuracy(validation_set(self.config, self.sim.task)) if evaluate else [None]
            record["validation_accuracy"] = held[0]
            record["seconds_evaluate"] += time.perf_counter() - started
        return {**finite(record)}

    def _checkpoint_due(self) -> bool:
        if self.config.checkpoint_every:
            return self.round % self.config.checkpoint_every == 0
        return time.perf_counter() - self._saved_at >= self._save_seconds / CHECKPOINT_SHARE

    def checkpoint(self) -> None:
        """Bring the state after the last round to disk, unless it is there."""
        if self._saved_round != self.round:
            self._save(self.sim.state())

    def _save(self, state: tuple[dict[str, Any], Any]) -> None:
        started = time.perf_counter()
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in state[0].items()}
        versions = {"fedhyper": fedhyper.__version__, "torch": library_version("torch")}
        values = {"config_hash": config_hash(self.config), "state": state[1], "versions": versions}
        self.files.save_checkpoint(self.round, tensors, values)
        self._saved_round, self._saved_at = self.round, time.perf_counter()
        self._save_seconds = self._saved_at - started

    def finish(self) -> Summary:
        """Bring everything to disk. Raises TrainingStopped when the guard ended the run."""
        self.checkpoint()
        weights = self.files.path / "weights.safetensors"
        with disk_errors(weights):
            self._write_weights(weights)
        diverged = self.over == "diverged"
        summary = self._write_summary("diverged" if diverged else "finished")
        if diverged:
            raise TrainingStopped(self._why_stopped())
        return summary

    def _why_stopped(self) -> str:
        config = self.config
        if self.sim.idle_rounds < config.max_bad_rounds:
            return (
                f"{config.max_bad_rounds} rollbacks without a gain between them, up to round {self.round}: what "
                "clients send damages the model. Look for hostile ones, or use aggregate=median; if all are honest, "
                "the model does not learn from these data at any rate"
            )
        return f"no usable update for {config.max_bad_rounds} rounds, up to round {self.round}; " + (
            "reject_reasons in metrics.jsonl says why"
            if config.finds_rates
            else f"start from a lower local_lr than {config.local_lr:g} or use method=fedhyper"
        )

    def _write_weights(self, path: Path) -> None:
        from safetensors.torch import save

        replace(path, save({name: tensor.contiguous() for name, tensor in self.sim.named_weights().items()}))

    def interrupt(self, number: int) -> Interrupted:
        """Bring everything to disk; what to raise comes back."""
        self.checkpoint()
        self._write_summary("interrupted")
        return Interrupted(
            number, f"interrupted after round {self.round} of {self.config.rounds}; the same command goes on"
        )

    def _write_summary(self, status: Literal["running", "finished", "interrupted", "diverged"]) -> Summary:
        self.summary = self.progress.summary(status, self.sim.weights_sha256())
        self.files.write_json("summary.json", self.summary)
        return self.summary


def run_experiment(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    fresh: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    display: Listener | None = None,
    make: Callable[..., Simulation] = make_simulation,
    engine: str = "simulator",
) -> Summary:
    """Run ``config`` in the directory ``out`` to its end; its summary comes back.

    ``workers`` (None: every core) and ``device`` do not change the result. With ``resume`` a run that was
    interrupted continues, and a finished one is extended when ``config`` asks for more rounds; with ``fresh`` it is
    deleted, once the new one is ready to start. ``make`` builds what trains; ``engine`` is what ``--engine`` calls it.
    """
    display = display or Silent()
    # Until the run is ready a signal does what it does to any process: there is nothing to save yet.
    with (
        Run(config, out, resume=resume, fresh=fresh, workers=workers, device=device, make=make, engine=engine) as run,
        Signals() as signals,
    ):
        for note in run.notes:
            display.note(note)
        run.begin()
        display.start(run)
        try:
            while not run.over:
                if signals.received:
                    raise run.interrupt(signals.received)
                display.round(run, run.step(signals))
            return run.finish()
        except AbandonRound:
            raise run.interrupt(signals.received) from None
        finally:
            # Not what was last written: an error may have come between the last rounds and their summary.
            display.end(run, run.summary | run.progress.summary(run.summary["status"], run.summary["weights_sha256"]))
