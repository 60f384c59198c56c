"""From a setting to the cells of a sweep, and back: what a finished run is worth.

OUT/cells/<setting>/<run>/      run directories like any other: fedhyper report OUT/cells/<setting>
"""

from __future__ import annotations

import copy
import hashlib
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.robustness.oracle import Rival
from benchmarks.robustness.settings import Setting
from fedhyper.lab.config.model import make_config
from fedhyper.lab.config.toml import put
from fedhyper.lab.results.metrics import total_seconds
from fedhyper.lab.results.stored import StoredRun, load_runs
from fedhyper.lab.running.rule import rule
from fedhyper.lab.sweep.grid import MAX_NAME, Cell, cell_name

CAP = "norm_cap"  # among the options of fedhyper's runs, though it is a key of the config
LAST = 3  # evaluations that a score is the mean of; fewer in runs of fewer than nine


class Entry(NamedTuple):
    """What is kept of a run.

    score    accuracy in percent, the mean of the last three evaluations
    seconds  of its rounds
    commit   of the code that ran it
    reached  (round, accuracy in percent) wherever a run was better than ever before
    rates    lowest and highest local rate of the rounds in which all clients had the same
    first    seconds of training in round 1, in medians of all rounds
    """

    score: float
    seconds: float
    commit: str
    reached: tuple[tuple[int, float], ...] = ()
    rates: tuple[float, float] | None = None
    first: float = 0.0

    def rounds_to(self, accuracy: float) -> int | None:
        """The first evaluated round with this accuracy (percent); None: there is none, or the curve was not kept."""
        return next((t for t, value in self.reached if value >= accuracy), None)


class Want(NamedTuple):
    """One run: a rival or fedhyper itself (a start and the options that differ), in a setting, with a seed."""

    setting: Setting
    who: Rival | tuple[str, float, tuple[tuple[str, Any], ...]]
    seed: int

    @property
    def word(self) -> str:
        """Its name in the store, which with the setting's key says all that the run depends on."""
        if isinstance(self.who, Rival):
            return f"{self.who} seed {self.seed}"
        method, start, options = self.who
        more = "".join(
            f" {key}={value:.6g}" if isinstance(value, float) else f" {key}={value}" for key, value in options
        )
        return f"{method}@{rule()} {start:g}{more} seed {self.seed}"

    @property
    def cell(self) -> Cell:
        """The run as a cell of a sweep."""
        rounds, values = self.setting.values["rounds"], dict[str, Any]()
        for key, value in self.setting.values.items():
            put(values, key, copy.copy(value))
        # nothing ends early: all have the same number of rounds, and a diverged run has the score of its last weights
        values |= {"seed": self.seed, "max_bad_rounds": rounds, "checkpoint_every": 0, CAP: 0.0}
        if isinstance(self.who, Rival):
            method = {"fedavg": "decay-sl", "fedavgm": "decay-sl+momentum"} if self.who.decay > 1 else {}
            values |= {"method": method.get(self.who.method, self.who.method)}
            values |= {"local_lr": self.who.local_lr, "global_lr": self.who.global_lr}
            if self.who.decay > 1:
                values["options"] = {"factor": self.who.decay ** (-1 / rounds)}
        else:
            method_, start, changed = self.who
            options = dict(changed)
            values |= {CAP: options.pop(CAP, 0.0), "method": method_, "local_lr": start, "options": options}
        name = cell_name([("run", self.word)]).removeprefix("run=")
        return Cell(f"{folder(self.setting)}/{name}"[: 2 * MAX_NAME], make_config(values, name))


def folder(setting: Setting) -> str:
    """A directory's name for the setting: readable, and of this setting alone."""
    digest = hashlib.blake2b(setting.key.encode(), digest_size=3).hexdigest()
    parts = [str(value) for key, value in setting.values.items() if key in ("task", "model", "rounds")]
    return f"{'-'.join(parts)}-{digest}"


def measure(cell: Cell, out: Path) -> Entry:
    """What the finished run of a cell is worth; what is only needed to continue it is removed from its directory."""
    path = out / "cells" / cell.name
    [run] = load_runs([path])
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    (path / "weights.safetensors").unlink(missing_ok=True)
    commit = str((run.env or {}).get("git") or "")[:7]
    # while clients try rates out, which two liars make two rounds of, each has its own: that is no rate of the rule's
    rates = [one["local_lr"] for one in run.rounds if one.get("local_lr_min") == one.get("local_lr_max") is not None]
    trained = [one.get("seconds_train") or 0.0 for one in run.rounds]
    return Entry(
        round(score(run), 3),
        round(total_seconds(run), 2),
        commit,
        tuple(_reached(run)),
        (float(f"{min(rates):.3g}"), float(f"{max(rates):.3g}")) if rates else None,
        round(trained[0] / max(median(trained), 1e-9), 1),
    )


def score(run: StoredRun) -> float:
    """Accuracy in percent, the mean of the last three evaluations; of fewer where a run has fewer than nine."""
    known = [record["accuracy"] for record in run.rounds if record.get("accuracy") is not None]
    return 100 * fmean(known[-min(LAST, math.ceil(len(known) / 4)) :])


def _reached(run: StoredRun) -> Sequence[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for record in run.rounds:
        value = record.get("accuracy")
        if value is not None and (not found or round(100 * value, 2) > found[-1][1]):
            found.append((record["round"], round(100 * value, 2)))
    return found
