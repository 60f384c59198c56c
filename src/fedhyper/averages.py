"""What a run evaluates and keeps: the newest weights, or a mean over rounds, which takes out their to and fro."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedhyper.arrays import Array, blend, is_number


class Model(NamedTuple):
    """What a server sends: trained weights, and statistics (BatchNorm's), which are averaged and never stepped."""

    weights: Array
    statistics: Array = 0.0  # 0.0: there are none


class Averaging(Protocol):
    """Which weights are evaluated and kept."""

    def update(self, mean: Model, before: Model, after: Model, count: int) -> Model:
        """The mean after a step from ``before`` to ``after``, the ``count``-th to be averaged, counted from 1."""


def _blend(old: Model, new: Model, share: float) -> Model:
    return Model(*(blend(a, b, share) for a, b in zip(old, new, strict=True)))


@dataclass(frozen=True)
class Newest:
    """No mean: the newest weights."""

    def update(self, mean: Model, before: Model, after: Model, count: int) -> Model:
        """``after``."""
        return after


@dataclass(frozen=True)
class LastTwo:
    """(w_t + w_t+1) / 2, as FedExP's authors evaluate."""

    def update(self, mean: Model, before: Model, after: Model, count: int) -> Model:
        """The middle of the two."""
        return _blend(before, after, 0.5)


@dataclass(frozen=True)
class LastRounds:
    """mean + (η + 1)/(k + η) · (w − mean) after k rounds: a window over the newest that grows with the run.

    recency  η ≥ 0, without unit: the mean reaches back about k/(η + 1) rounds. 0 weighs all rounds alike; raising it
             stays closer to the newest weights, and a large one (1e9) is no mean at all
    """

    recency: float = 16.0

    def __post_init__(self) -> None:
        if not (is_number(self.recency) and 0 <= self.recency < math.inf):
            raise ValueError(
                f"recency must be a finite number of at least 0, got {self.recency!r}; a large one is no mean at all"
            )

    def update(self, mean: Model, before: Model, after: Model, count: int) -> Model:
        """The mean, moved towards ``after``."""
        return _blend(mean, after, (self.recency + 1) / (count + self.recency))
