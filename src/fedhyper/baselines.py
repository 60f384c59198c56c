"""The rates we compare with: constant, decayed once a round, and FedExP. Same shape as the rules in ``schedulers``."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

from fedhyper.arrays import Array, inner
from fedhyper.guard import clamp
from fedhyper.schedulers import LRState
from fedhyper.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Constant:
    """lr_t = lr: plain FedAvg, for either rate."""

    lr: float = setting(1.0, "initial rate; raising it makes every step longer", above=0)
    requires: ClassVar[tuple[str, ...]] = ()
    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> LRState:
        """The rate."""
        return LRState(self.lr)

    def update(self, state: LRState) -> LRState:
        """The same rate again."""
        return state


@dataclass(frozen=True, kw_only=True)
class Decay:
    """lr_t = lr · factor^t, t the round counted from 0: the paper's Decay-G and Decay-SL with factor 0.995."""

    lr: float = setting(1.0, "initial rate; raising it makes every step longer", above=0)
    factor: float = setting(
        0.995,
        "what a round multiplies the rate with; raising it slows the decay",
        above=0,
        high=1,
        cure="1 holds the rate still",
    )
    requires: ClassVar[tuple[str, ...]] = ()
    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> LRState:
        """Round 0; ``before`` counts the updates, since nothing else has to be remembered."""
        return LRState(self.lr)

    def update(self, state: LRState) -> LRState:
        """The first update is neutral like every rule's: round 0 uses the initial rate."""
        # a rate of 0 is none: a run that has come there could not be resumed
        return LRState(max(self.lr * self.factor**state.before, sys.float_info.min), state.before + 1)


@dataclass(frozen=True, kw_only=True)
class FedExP:
    """α_t = max(1, mean_m |Δ_m|² / (2 (|Δ|² + ε))): Jhunjhunwala et al., ICLR 2023.

    ``update(state, delta, sq_norm)`` takes the *mean* of the clients' squared norms, a scalar that can ride along in a
    secure sum; from the aggregate alone it would be ½ and the rule FedAvg. Their evaluation uses the mean of the last
    two iterates; that is the caller's part. There is no initial rate: the floor is 1, as published.
    """

    epsilon: float = setting(1e-3, "ε beside |Δ|²; raising it keeps the global rate nearer to 1", above=0)
    requires: ClassVar[tuple[str, ...]] = ("delta", "sq_norm")
    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> LRState:
        """1, the floor."""
        return LRState(1.0)

    def update(self, state: LRState, delta: Array, sq_norm: float) -> LRState:
        """The rate for this round's ``delta``; nothing is remembered."""
        rate = sq_norm / (2 * (inner(delta, delta) + self.epsilon))
        return LRState(clamp(float(rate), 1.0, math.inf, keep=state.lr))
