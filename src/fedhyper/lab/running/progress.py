"""What the records of a run add up to, and who is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedhyper.lab.running.run import Run

Summary = dict[str, Any]
Record = dict[str, Any]

SETTLED = 10  # rounds without a rollback after which, in a run that has gained, those before it are forgotten


class Listener(Protocol):
    """What is told about a run while it goes on."""

    def start(self, run: Run) -> None:
        """The run is ready; ``run.round`` rounds of it were there before."""

    def round(self, run: Run, record: Record) -> None:
        """One more round is done."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def end(self, run: Run, summary: Summary) -> None:
        """The run is over, for now or for good."""


class Silent:
    """A listener that prints and writes nothing; others say only what differs."""

    def start(self, run: Run) -> None:
        """Ignores that the run is ready."""

    def round(self, run: Run, record: Record) -> None:
        """Ignores the round."""

    def note(self, text: str) -> None:
        """Ignores the note."""

    def end(self, run: Run, summary: Summary) -> None:
        """Ignores that the run is over."""


@dataclass
class Progress:
    """What the records of a run add up to. Seconds are those of its rounds, however often it was interrupted."""

    target: float
    rounds: int = 0
    final_accuracy: float | None = None
    final_loss: float | None = None
    best_accuracy: float | None = None
    best_judged: float | None = None  # what decides: the validation accuracy if there is one, else the test accuracy
    since_best: int = 0  # evaluations
    rounds_to_target: int | None = None
    seconds_to_target: float | None = None
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    start_trials: int = 0  # local rounds beyond one a client, where clients tried rates out
    start_seconds: float = 0.0  # training in those rounds
    rollbacks: int = 0  # since the run last settled; a run that never gains, however slowly it loses, does not
    since_rollback: int = 0
    first_loss: float | None = None  # training loss of the first round that has one
    epsilon: float | None = None  # spent, in a private run
    begun_with_rounds: int | None = None  # that its start knew of, where that made it another run

    def add(self, record: Record) -> None:
        """Count the round ``record`` in: its seconds and bytes, and its accuracy if it was evaluated."""
        self.rounds, self.epsilon = record["round"], record.get("epsilon")
        self.since_rollback = 0 if record["rollback"] else self.since_rollback + 1
        loss = record.get("train_loss")
        self.first_loss = loss if self.first_loss is None else self.first_loss
        gained = loss is None or self.first_loss is None or loss < self.first_loss
        if record["rollback"] or (self.since_rollback > SETTLED and gained):
            self.rollbacks = self.rollbacks + 1 if record["rollback"] else 0
        self.seconds += sum(value for key, value in record.items() if key.startswith("seconds") and value)
        self.bytes_up += record["bytes_up"]
        self.bytes_down += record["bytes_down"]
        if "start_trials" in record:
            self.start_trials += record["start_trials"]
            self.start_seconds += record["seconds_train"]
        accuracy = record["accuracy"]
        if accuracy is None:
            return
        self.final_accuracy, self.final_loss = accuracy, record["test_loss"]
        # Whoever holds data out does not choose on the test set.
        judged: Any = record.get("validation_accuracy", accuracy)
        if judged is not None and (self.best_judged is None or judged > self.best_judged):
            self.best_judged, self.best_accuracy, self.since_best = judged, accuracy, 0
        else:
            self.since_best += 1
        if self.target and judged is not None and judged >= self.target and self.rounds_to_target is None:
            self.rounds_to_target, self.seconds_to_target = self.rounds, self.seconds

    def summary(self, status: str, weights_sha256: str) -> Summary:
        """What ``summary.json`` holds."""
        return {
            "status": status,
            "rounds": self.rounds,
            "final_accuracy": self.final_accuracy,
            "best_accuracy": self.best_accuracy,
            "final_loss": self.final_loss,
            "target_accuracy": self.target or None,
            "rounds_to_target": self.rounds_to_target,
            "seconds_to_target": self.seconds_to_target,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "start_trials": self.start_trials,
            "start_seconds": self.start_seconds,
            "weights_sha256": weights_sha256,
            **({} if self.epsilon is None else {"epsilon": self.epsilon}),
            **({} if self.begun_with_rounds is None else {"begun_with_rounds": self.begun_with_rounds}),
        }
