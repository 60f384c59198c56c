"""What the server makes of a delta: w_t+1 = w_t − α_t · direction. Pure, element by element, on any array or pieces.

``update(state, delta) -> (direction, state)``. The schedule is computed from the raw delta, not from the direction,
and α multiplies the direction: FedHyper-G with FedAdam needs no class of its own. Directions have the unit of weights,
except Adagrad's, Adam's and Yogi's, which have none.

Reddi et al., *Adaptive Federated Optimization* (ICLR 2021), Algorithm 2: no bias correction, v starts at τ².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from fedhyper.arrays import Array, each, plus
from fedhyper.settings import check_settings, setting

_TAU = "τ, added to the root of the squares; raising it makes steps shorter and less adaptive"


class Moments(NamedTuple):
    """Running mean of deltas and of their squares; a number stands for an array full of it; ``steps`` so far."""

    mean: Array = 0.0
    square: Array = 0.0
    steps: int = 0


class ServerOptimizer(Protocol):
    """What a server makes of a delta."""

    @property
    def unitless(self) -> bool:
        """Whether directions have no unit: Adam and its kin move every weight by about 1, whatever the clients sent."""

    def init(self) -> Moments:
        """The state before the first round."""

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """The direction to move against, and the next state."""


@dataclass(frozen=True, kw_only=True)
class Average:
    """direction = Δ: FedAvg."""

    unitless: ClassVar[bool] = False

    def init(self) -> Moments:
        """Nothing to remember."""
        return Moments()

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """The delta itself."""
        return delta, state


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """m_t = μ_t m_t-1 + Δ_t, direction = m_t: FedAvgM, the same as ``torch.optim.SGD(momentum=μ)`` on Δ.

    μ_t = μ, or with a warm-up min(μ, k/(k + warmup)) in step k, counted from 0: a memory no longer than the run.
    """

    momentum: float = setting(
        0.9, "μ, share of the last server step in the next one; higher is smoother and slower to turn", low=0, below=1
    )
    warmup: float = setting(0.0, "steps after which half of a long memory is reached; 0: at once", low=0)
    unitless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> Moments:
        """m = 0."""
        return Moments()

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """m_t, twice: it is both the direction and the state."""
        k = state.steps
        share = min(self.momentum, k / (k + self.warmup)) if self.warmup else self.momentum
        mean = plus(delta, share, state.mean)
        return mean, Moments(mean, steps=k + 1)


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """v_t = v_t-1 + Δ_t², direction = Δ_t / (√v_t + τ): FedAdagrad."""

    tau: float = setting(1e-3, _TAU, low=1e-30, below=1e30)
    unitless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> Moments:
        """v = τ²."""
        return Moments(square=self.tau**2)

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """Each coordinate divided by the root of all its squares so far."""
        square = each(lambda new, v: v + new * new, delta, state.square)
        return each(lambda new, v: new / (v**0.5 + self.tau), delta, square), Moments(square=square)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """m_t = β1 m_t-1 + (1−β1) Δ_t, v_t = β2 v_t-1 + (1−β2) Δ_t², direction = m_t / (√v_t + τ): FedAdam."""

    beta1: float = setting(
        0.9, "β1, share of the old mean of deltas in the new one; higher is smoother", low=0, below=1
    )
    beta2: float = setting(0.99, "β2, the same of their squares; higher remembers longer", low=0, below=1)
    tau: float = setting(1e-3, _TAU, low=1e-30, below=1e30)
    unitless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> Moments:
        """m = 0, v = τ²."""
        return Moments(square=self.tau**2)

    def _square(self, delta: Array, square: Array) -> Array:
        return self.beta2 * square + (1 - self.beta2) * (delta * delta)

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """The smoothed delta over the root of its smoothed square."""
        mean = each(lambda new, m: self.beta1 * m + (1 - self.beta1) * new, delta, state.mean)
        square = each(self._square, delta, state.square)
        return each(lambda m, v: m / (v**0.5 + self.tau), mean, square), Moments(mean, square)


@dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """FedYogi: FedAdam with v_t = v_t-1 − (1−β2) Δ_t² sign(v_t-1 − Δ_t²), so v moves by Δ², not by a share."""

    def _square(self, delta: Array, square: Array) -> Array:
        new = delta * delta
        sign = (square > new) * 1.0 - (square < new) * 1.0
        return square - (1 - self.beta2) * new * sign
