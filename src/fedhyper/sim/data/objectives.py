"""What a task wants of a model's outputs: the loss that is trained on, and the score that is reported.

    CLASSES     one class an example        cross-entropy           accuracy
    YES_NO      yes or no, one output       binary cross-entropy    accuracy
    SEQUENCE    a class at every place      cross-entropy           accuracy, over places
    numbers()   one or more real numbers    squared error           R²: 1 is perfect, 0 is as good as the mean

A score is better the higher it is, and 1 at best. It is what records call ``accuracy``, whatever the task, so that
``target_accuracy``, ``patience`` and the report work on every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fedhyper.errors import UserError, did_you_mean

Kind = Literal["class", "yes-no", "sequence", "number"]
Pointwise = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """How outputs are judged.

    targets  what a target is: "class" int64 [n], 0 to classes − 1; "yes-no" int64 [n], 0 or 1; "sequence" int64
             [n, length]; "number" float32 [n] or [n, k]
    loss     loss(outputs, targets) → the batch's mean, a scalar to differentiate
    score    score(outputs, targets) → one number or truth value an example, [n]; its mean is reported
    """

    targets: Kind
    loss: Pointwise
    score: Pointwise

    def __post_init__(self) -> None:
        if self.targets not in (kinds := get_args(Kind)):
            raise UserError(f"an objective's targets = {self.targets!r}; {did_you_mean(str(self.targets), kinds)}")

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """The batch's loss times its number of examples."""
        if self.loss is F.cross_entropy:  # a sum, not a mean times n: it has had these bits from the start
            return F.cross_entropy(outputs, targets, reduction="sum").item()
        return self.loss(outputs, targets).item() * len(targets)


def mean_score(scores: Tensor) -> float:
    """The mean over examples, exact for truth values."""
    return float(scores.double().sum()) / len(scores)


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(1) == targets


def _yes_no_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.view(-1), targets.to(outputs.dtype))


def _yes_no_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.view(-1) > 0) == targets.bool()


def _sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _sequence_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).double().mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all numbers."""
    return F.mse_loss(outputs.view_as(targets), targets.to(outputs.dtype))


CLASSES = Objective(targets="class", loss=F.cross_entropy, score=_right)
YES_NO = Objective(targets="yes-no", loss=_yes_no_loss, score=_yes_no_right)
SEQUENCE = Objective(targets="sequence", loss=_sequence_loss, score=_sequence_right)


def numbers(test_y: Tensor) -> Objective:
    """Regression: squared error, and R² = 1 − mean (y − ŷ)² / variance of ``test_y``, all outputs together.

    On the test set this is R² as statistics has it; on a client's own data the same variance is the yardstick.
    """
    y = test_y.double().reshape(len(test_y), -1)
    spread = float(((y - y.mean(0)) ** 2).sum(1).mean()) or 1.0

    def score(outputs: Tensor, targets: Tensor) -> Tensor:
        error = (outputs.view_as(targets) - targets).double().reshape(len(targets), -1)
        return 1 - (error**2).sum(1) / spread

    return Objective(targets="number", loss=squared_error, score=score)


def split_labels(objective: Objective, targets: Tensor) -> Tensor:
    """A whole number an example, for partitions that split by label: the class, or the tenth a number lies in.

    Sequences have no label of their own: all get 0.
    """
    if objective.targets == "sequence":
        return torch.zeros(len(targets), dtype=torch.int64)
    if objective.targets != "number":
        return targets
    value = targets.double().reshape(len(targets), -1).mean(1)
    rank = torch.empty(len(value), dtype=torch.int64)
    rank[torch.argsort(value, stable=True)] = torch.arange(len(value))
    return rank * 10 // len(value)
