"""What is written down of a Flower run: the simulator's record of each round, in memory, in a directory, in the log."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import flwr
import numpy as np
from flwr.app import ArrayRecord, Message

from fedhyper.errors import TrainingStopped, UserError
from fedhyper.flower.aggregate import Aggregate
from fedhyper.flower.losses import first_number
from fedhyper.flower.nodes import Roster
from fedhyper.flower.records.replies import Refusal, one_line
from fedhyper.flower.wire import PREFIX
from fedhyper.loop import Decision
from fedhyper.storage.record import RoundRecord, finite
from fedhyper.storage.run_files import RunFiles

# The names that Flower's own examples use, in the order in which they are believed
ACCURACY = ("accuracy", "eval_accuracy", "eval_acc", "test_accuracy", "test_acc", "acc")
TEST_LOSS = ("loss", "eval_loss", "test_loss", "eval-loss")
# What Flower's own log and result show of a round, with our prefix
SHOWN = ("global_lr", "local_lr", "clients_used", "clients_rejected", "rollback", "epsilon")

OnRound = Callable[[RoundRecord], object]

_MOST_LINES = 10  # of one kind about one round

_log = logging.getLogger("flwr")


class RunLog:
    """``history`` is the record of every round; with a directory it is on disk, too, from ``begin`` on."""

    def __init__(self, directory: Path | None, on_round: OnRound | None = None) -> None:
        self.history: list[RoundRecord] = []
        self._on_round, self._told = on_round, 0
        self._directory = directory
        self._files: RunFiles | None = None
        self._bytes_up = self._bytes_down = 0
        self._sent = self._answered = self._done = time.perf_counter()

    # --- a run begins and ends ---------------------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any], history: Sequence[RoundRecord], *, resume: bool, unsaved: int) -> None:
        """A new run, or one that goes on after ``history``; a directory that holds another run is refused.

        ``unsaved``: rounds that a killed run may have done without a checkpoint, which begin anew. More of them are a
        run of their own, whose records would be lost.
        """
        self.history, self._told = list(history), len(history)
        if self._directory is None:
            return
        files = RunFiles(self._directory)
        # a round that was evaluated after it had been saved is whole only here
        known = {record["round"]: record for record in files.rounds()}
        if files.hold_a_run and not (resume and (history or len(known) <= unsaved)):
            cure = "choose another, or go on from the run's checkpoint: FedHyper(checkpoint=...), start(resume=True)"
            raise UserError(f"run_dir {self._directory} holds a run; {cure}")
        self.history = [known.get(record["round"], record) for record in self.history]
        files.begin(config, {"numpy": np.__version__, "flwr": flwr.__version__}, self.history)
        self._files = files
        self._summarize("running", "")

    def tell(self) -> None:
        """Show whoever asked for it the rounds that are complete, evaluation and all, each once."""
        for record in self.history[self._told :] if self._on_round is not None else ():
            self._told += 1
            self._on_round(record)  # type: ignore[misc]

    def end(self, kept: ArrayRecord) -> None:
        """The run came to its end with these weights."""
        self.tell()
        digest = hashlib.sha256()
        for array in kept.values() if self._files is not None else ():
            digest.update(array.data)
        self._summarize("finished", digest.hexdigest())

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Say on disk what became of a run that does not come to its end."""
        try:
            yield
        except BaseException as error:
            self.tell()
            self._summarize("diverged" if isinstance(error, TrainingStopped) else "interrupted", "")
            raise

    def _summarize(
        self, status: Literal["running", "finished", "diverged", "interrupted"], weights_sha256: str
    ) -> None:
        if self._files is not None:
            self._files.summarize(status, self.history, weights_sha256)

    # --- a round -----------------------------------------------------------------------------------------------------

    def sent(self, messages: Iterable[Message]) -> None:
        """The round's messages are about to go out."""
        self._bytes_down, self._sent = _array_bytes(messages), time.perf_counter()

    def answered(self, messages: Iterable[Message]) -> None:
        """All that came back is here."""
        self._bytes_up, self._answered = _array_bytes(messages), time.perf_counter()

    def add(
        self,
        server_round: int,
        rates: Sequence[float],
        made: Aggregate,
        decision: Decision,
        measured: Mapping[str, Any],
        spent: Mapping[str, Any],
    ) -> RoundRecord:
        """The round's record. ``rates`` are the local ones; ``measured`` has hypergrad, cosine and update_norm, and
        ``spent``, in a private run, epsilon."""
        self._done = time.perf_counter()
        idle = decision.action == "idle"
        record = finite(
            {
                "round": server_round,
                "global_lr": decision.global_lr,
                "local_lr": sum(rates) / len(rates),
                "local_lr_min": min(rates),
                "local_lr_max": max(rates),
                **(dict.fromkeys(measured) if idle else measured),
                "train_loss": made.train_loss,
                "test_loss": None,
                "accuracy": None,
                "seconds_train": self._answered - self._sent,
                "seconds_aggregate": self._done - self._answered,
                "seconds_evaluate": None,
                "bytes_up": self._bytes_up,
                "bytes_down": self._bytes_down,
                "clients_used": 0 if idle else len(made.believed),
                "clients_rejected": len(made.rejected),
                "reject_reasons": dict(sorted(Counter(refusal.reason for refusal in made.rejected).items())),
                "rollback": decision.action == "rollback",
                **spent,
            }
        )
        self.history.append(record)
        if self._files is not None:
            self._files.write(record, again=False)
        return record

    def evaluated(self, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """The weights after this round were evaluated, on the server or by the clients; the last word counts."""
        if metrics is None or not self.history or self.history[-1]["round"] != server_round:
            return
        found = {"accuracy": first_number(metrics, ACCURACY), "test_loss": first_number(metrics, TEST_LOSS)}
        known = {key: value for key, value in found.items() if value is not None}
        if known:
            seconds = time.perf_counter() - self._done
            self.history[-1] = record = finite({**self.history[-1], "seconds_evaluate": seconds, **known})
            if self._files is not None:
                self._files.write(record, again=True)


def shown(record: RoundRecord) -> dict[str, Any]:
    """What Flower logs and keeps of a round, beside the inner strategy's own metrics."""
    named: dict[str, Any] = {key: record.get(key) for key in SHOWN}
    return {f"{PREFIX}{key.replace('_', '-')}": value + 0 for key, value in named.items() if value is not None}


def complain(
    record: RoundRecord,
    rejected: list[Refusal],
    messages: list[Message],
    asked: Iterable[int],
    roster: Roster,
    *,
    waits: bool = False,
) -> str:
    """Log what went wrong in a round, by node; the reasons come back in one line.

    ``waits``: nobody's update was wanted, for clients go on trying rates out.
    """
    failed = [(m.metadata.src_node_id, one_line(str(m.error.reason))) for m in messages if m.has_error()]
    silent = sorted(set(asked) - {message.metadata.src_node_id for message in messages}, key=roster.position)
    _say("reply of %s refused: %s", [(roster.who(node), reason) for node, reason in rejected])
    _say("%s failed: %s", [(roster.who(node), reason) for node, reason in failed])
    _say("%s did not answer%s", [(roster.who(node), "") for node in silent])
    if record["rollback"]:
        _log.warning("fedhyper: round %d: damaged weights; back to the last good ones", record["round"])
    if not record["clients_used"] and not waits:
        _log.warning("fedhyper: round %d had no usable reply; the weights stay", record["round"])
    reasons = [f"{roster.who(node)}: {reason}" for node, reason in (*rejected, *failed)]
    return "; ".join(reasons[:3]) or "nobody answered"


def _say(line: str, cases: Sequence[tuple[str, str]]) -> None:
    for case in cases[:_MOST_LINES]:
        _log.warning(f"fedhyper: {line}", *case)
    if len(cases) > _MOST_LINES:
        _log.warning("fedhyper: and %d more like these", len(cases) - _MOST_LINES)


def complain_of_evaluation(rejected: list[Refusal], roster: Roster) -> None:
    """Log whose evaluation was left out."""
    _say("evaluation of %s refused: %s", [(roster.who(node), reason) for node, reason in rejected])


def _array_bytes(messages: Iterable[Message]) -> int:
    contents = [message.content for message in messages if message.has_content()]
    return sum(
        len(a.data) for content in contents for record in content.array_records.values() for a in record.values()
    )
