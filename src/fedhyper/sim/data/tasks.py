"""Tasks: training and test tensors, ready to be split among clients, and how a model's outputs are judged.

A task is one function that returns a ``Task``; ``register_task`` gives it a name. See docs/extend.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedhyper.errors import UserError
from fedhyper.sim.data.objectives import CLASSES, Objective, split_labels
from fedhyper.sim.registry import TASKS
from fedhyper.sim.rng import generator

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """What to learn: inputs, targets, and how a model's outputs are judged.

    train_x    float32 (images ``[n, c, h, w]``, or any shape a model of yours takes) or int64 (characters
               ``[n, length]``)
    train_y    what ``objective`` asks for: int64 ``[n]`` with values 0 to ``classes`` − 1 unless it says otherwise
    test_x, test_y   likewise, for the evaluation
    classes    how many classes there are, which is how many outputs a model has; 1 for yes or no, and for regression
               how many numbers a target is
    model      the model it is trained with unless the config says otherwise; ``load_task`` fills it in
    groups     the training indices of each natural client, where the data has them
    objective  the loss and the score; cross-entropy and accuracy by default
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    model: str = ""
    groups: tuple[Indices, ...] | None = None
    objective: Objective = CLASSES

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            self._check_targets(part, x, y)
            if not all(bool(torch.isfinite(end)) for end in torch.aminmax(x)):  # a NaN is both ends
                self._refuse(f"{part}_x has values that are not finite", "finite numbers")
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            self._refuse(f"train_x[0] and test_x[0] have shapes {self.shape} and {tuple(self.test_x.shape[1:])}", "one")
        if self.groups is not None:
            seen = np.bincount(np.concatenate(self.groups), minlength=len(self.train_x))
            if len(seen) != len(self.train_x) or not (seen == 1).all():
                self._refuse("groups do not hold every training index exactly once", "a split of the training set")

    def _check_targets(self, part: str, x: Tensor, y: Tensor) -> None:
        kind = self.objective.targets
        dims = {"sequence": (2,), "number": (1, 2)}.get(kind, (1,))
        if x.ndim < 2 or len(x) == 0 or len(y) != len(x) or y.ndim not in dims:
            shape = {"sequence": "[n, length]", "number": "[n] or [n, k]"}.get(kind, "[n]")
            self._refuse(f"{part}_x has shape {tuple(x.shape)} and {part}_y {tuple(y.shape)}", f"[n, ...] and {shape}")
        wanted = torch.float32 if kind == "number" else torch.int64
        if x.dtype not in (torch.float32, torch.int64) or y.dtype != wanted:
            name = str(wanted).removeprefix("torch.")
            self._refuse(f"{part}_x is {x.dtype} and {part}_y {y.dtype}", f"float32 (or int64 characters) and {name}")
        if kind == "number":
            if not bool(torch.isfinite(y).all()):
                self._refuse(f"{part}_y has values that are not finite", "finite numbers")
            return
        highest = 1 if kind == "yes-no" else self.classes - 1
        if int(y.min()) < 0 or int(y.max()) > highest:
            self._refuse(f"{part}_y runs from {int(y.min())} to {int(y.max())}", f"0 to {highest}")

    def _refuse(self, what: str, expected: str) -> None:
        raise UserError(f"task {self.name}: {what}; expected {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])

    @property
    def tokens(self) -> bool:
        """Whether inputs are numbers of characters rather than measurements."""
        return not self.train_x.is_floating_point()

    @property
    def labels(self) -> Indices:
        """A whole number a training example, for partitions that split by label; tenths of the range of numbers."""
        labels: Indices = split_labels(self.objective, self.train_y).numpy()
        return labels

    def subset(self, size: int) -> Task:
        """The same task with ``size`` training examples, always the same ones; the test set stays whole."""
        n = len(self.train_x)
        if not 1 <= size <= n:
            raise UserError(f"subset = {size} must lie between 1 and the {n:,} training examples of {self.name}")
        kept = np.sort(generator(0, "subset", self.name).permutation(n)[:size])
        return self._rows(kept, self._regrouped(kept))

    def hold_out(self, count: int, seed: int) -> Task:
        """The same task with the ``count`` training examples that ``seed`` draws moved to the end.

        Whoever splits the data leaves them to nobody; they stay in ``train_x``, where an engine can score them. In a
        task with natural clients they make up one more group, the last.
        """
        order = generator(seed, "validation").permutation(len(self.train_x))
        kept, held = np.sort(order[count:]), np.sort(order[:count])
        groups = self._regrouped(kept)
        if groups is not None:
            groups = (*groups, np.arange(len(kept), len(order)))
        return self._rows(np.concatenate([kept, held]), groups)

    def _rows(self, rows: Indices, groups: tuple[Indices, ...] | None) -> Task:
        chosen = torch.from_numpy(rows)
        return dataclasses.replace(self, train_x=self.train_x[chosen], train_y=self.train_y[chosen], groups=groups)

    def _regrouped(self, kept: Indices) -> tuple[Indices, ...] | None:
        """The natural clients' examples among ``kept``, by their new numbers; a client without any is gone."""
        if self.groups is None:
            return None
        place = np.full(len(self.train_x), -1)
        place[kept] = np.arange(len(kept))
        mapped = (place[group] for group in self.groups)
        return tuple(group[group >= 0] for group in mapped if (group >= 0).any())


def digests(task: Task) -> dict[str, str]:
    """What the task's data are, by SHA-256: of its files, or where it has none of its tensors."""
    from fedhyper.sim.data.files import digests as of_files

    parts = {part: getattr(task, part) for part in ("train_x", "train_y", "test_x", "test_y")}
    return of_files(task.name) or {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in parts.items()}


def load_task(name: str, *, subset: int | None = None) -> Task:
    """The task of this name, whole or with ``subset`` training examples."""
    entry = TASKS.get(name)
    task = entry.load()
    if not isinstance(task, Task):
        raise UserError(f"task {name!r}: its function must return a Task, got {type(task).__name__}")
    if (task.groups is not None) != entry.natural:
        raise UserError(f"task {name!r}: register it with natural=True if it has groups, and only then")
    task = dataclasses.replace(task, model=task.model or entry.model)
    return task if subset is None else task.subset(subset)
