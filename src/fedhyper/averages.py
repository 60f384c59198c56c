"""What a run evaluates and keeps: the newest weights, or a mean over rounds, which takes out their to and fro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedhyper.arrays import Array, blend
from fedhyper.settings import check_settings, setting


class Model(NamedTuple):
    """What a server sends.

    weights     what is trained: stepped by the server
    statistics  what is averaged and never stepped, such as BatchNorm's; 0.0: there are none
    """

    weights: Array
    statistics: Array = 0.0


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

    Of k rounds it reaches back about k/(η + 1).
    """

    recency: float = setting(
        16.0,
        "η: 0 weighs all rounds alike; raising it stays closer to the newest weights",
        low=0,
        cure="a large one (1e9) is no mean at all",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def update(self, mean: Model, before: Model, after: Model, count: int) -> Model:
        """The mean, moved towards ``after``."""
        return _blend(mean, after, (self.recency + 1) / (count + self.recency))
