"""Learning-rate-free: one plan that ends near a tuned rate from any initial one, from the aggregate and two scalars.

    climb    β ← climb · β          while |Δ_m|²/β² stays what it was: the round is linear, and nothing has been risked
    follow   β ← β · exp(κ · (h + drive − brake·p²)),   h = cos(Δ_t, M_t-1),   M_t = Δ_t + momentum · M_t-1
    retreat  β ← β / retreat        back to the last good weights, when the loss says that they were damaged; a climb
                                    that did damage has done it a round or two before it shows: back to where it began

M is the server's step, so h is the hypergradient of what was really done. Against Δ_t-1 alone it has up to twice the
noise, and where cohorts differ it is far below 0 at any rate: they undo each other's work in a few steep directions,
most of which M has averaged away. As a run settles h sinks and the rate with it, a decay that nobody has to choose. At
rates far too high h is noise around 0, which pulls nothing back; p does: in [0, 1], how far the smoothed loss lies
above its best, in units of what there is to lose (the best itself late in a run, the progress since the first round
early in it). From the climb on, the weights to evaluate and to keep are a mean of the last few rounds', which takes out
the rest of the to and fro.
docs/results/robustness.md has the roads not taken, with figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedhyper.arrays import Array, cosine, inner, is_number, plus
from fedhyper.guard import check_positive, clamp
from fedhyper.optimizers import Moments, ServerOptimizer
from fedhyper.plan import PlanState
from fedhyper.schedulers import LRState


class AutoState(NamedTuple):
    """What ``Auto`` remembers beside the rate and M_t-1. Lengths are ln(|Δ_m|²/β²)."""

    early: bool = True  # neither damage nor real progress yet: it may climb
    seen: int = 0  # rounds that were believed
    length: float = math.nan  # its mean over the climb
    flat: float = 1.0  # the newest length against that mean, as a ratio
    acts: bool = False  # whether the newest round gave a sign that the rate is no longer too small to matter
    first: float = math.nan  # the first round's loss
    smooth: float = math.nan  # the loss, exponentially smoothed
    best: float = math.inf  # the lowest smoothed one
    returned: bool = False  # whether the round before was a retreat
    ceiling: float = math.inf  # a rate that did damage, less a little; forgotten in some ten rounds
    averaged: int = 0  # rounds in the mean


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Learning-rate-free: climb, follow, retreat (see above). The initial rates are where it starts, if that is low.

    Only the product of the two rates moves the model while steps are small, so there is one budget: it starts as
    min(global_lr · local_lr, probe), is spent on the local rate, and the global rate is 1. A run that starts high may
    be past saving after one round (dead ReLUs keep a loss of ln 10), so no start is believed above ``probe``.

    probe      highest rate of the first round
    climb      factor a round while the clients' rounds are linear; its square below ``probe``
    saturated  |Δ_m|²/β² below this share of its mean, or a loss slack/8 below the first, twice in a row: no climb
    hyper_lr   κ, step size in log space
    drive      under noise the greedy rate (h = 0) is below the best one
    momentum   share of the last step in the next one, and of what the cosine remembers; none while it climbs
    brake      weight of the loss against the cosine, by p²: a little above the best is nothing
    smoothing  weight of the newest loss in the smoothed one
    slack      share of the first loss that is taken for noise
    retreat    divisor after damage
    recency    η ≥ 0: of k rounds in the mean the newest weighs (η + 1)/(k + η); 0: all alike
    bound      the rate stays within [start/bound, start·bound]
    """

    local_lr: float = 0.01
    global_lr: float = 1.0
    probe: float = 1e-3
    climb: float = 3.0
    saturated: float = 0.5
    hyper_lr: float = 0.4
    drive: float = 0.05
    momentum: float = 0.8
    brake: float = 10.0
    smoothing: float = 0.3
    slack: float = 0.2
    retreat: float = 2.0
    recency: float = 16.0
    bound: float = 1e6

    def __post_init__(self) -> None:
        for name in ("local_lr", "global_lr", "probe", "hyper_lr"):
            check_positive(name, getattr(self, name))
        for name in ("climb", "retreat", "bound"):
            value = getattr(self, name)
            if not (is_number(value) and 1 <= value < math.inf):
                raise ValueError(f"{name} is a factor and must be at least 1, got {value!r}; 1 switches it off")
        for name in ("saturated", "smoothing", "slack"):
            value = getattr(self, name)
            if not (is_number(value) and 0 < value <= 1):
                raise ValueError(f"{name} is a share and must be in (0, 1], got {value!r}")
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum!r}; 0 switches it off")
        for name in ("drive", "brake", "recency"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < math.inf):
                cure = "a large one switches the mean off" if name == "recency" else "0 switches it off"
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}; {cure}")

    @property
    def requires(self) -> frozenset[str]:
        """The aggregate and two scalars."""
        return frozenset(("delta", "loss", "sq_norm"))

    @property
    def start(self) -> float:
        """The first round's local rate."""
        return min(self.local_lr * self.global_lr, self.probe)

    def init(self) -> PlanState:
        """The whole budget as the local rate."""
        return PlanState(1.0, self.start, False, 0.0, (LRState(self.start), AutoState()))

    def update(self, state: PlanState, delta: Array, *, loss: float, sq_norm: float) -> PlanState:
        """Climb, follow or retreat. ``loss``: the clients' mean loss before they train; ``sq_norm``: Σ p_m |Δ_m|².

        Neither has a default: without them every round would look like damage.
        """
        rate, seen = state.parts
        first = seen.first if seen.seen else loss
        damaged = seen.seen > 0 and not seen.returned and loss - seen.best > self._stake(seen.best, first)
        if damaged or not (math.isfinite(loss) and 0 <= sq_norm < math.inf):
            return self.lost(state)
        length = math.log(sq_norm) - 2 * math.log(rate.lr) if sq_norm else seen.length
        flat = math.exp(min(length - seen.length, 700.0)) if math.isfinite(seen.length) and sq_norm else 1.0
        if seen.early and seen.flat < 1 and flat > self.climb:  # it flattened and now shoots up: clients diverge
            return self.lost(state)

        smooth = (1 - self.smoothing) * seen.smooth + self.smoothing * loss if seen.seen else loss
        best = min(seen.best, smooth)
        stake = self._stake(best, first)
        p = min((smooth - best) / stake, 1.0) if stake > 0 else 0.0
        h = float(cosine(delta, rate.before))
        # with one local step |Δ_m|²/β² cannot fall, but the loss can: either says that the rate has begun to act
        acts = flat < self.saturated or loss < (1 - self.slack / 8) * first
        early = seen.early and smooth >= (1 - self.slack) * first
        climbing = early and not (acts and seen.acts)  # one such round may be an odd cohort: wait for the next
        if climbing:
            factor = 1.0 if acts else self.climb**2 if rate.lr < self.probe else self.climb
        else:
            factor = math.exp(self.hyper_lr * (h + self.drive - self.brake * p * p))
        # forgotten in some ten rounds: where cohorts differ the alarm may have been false
        ceiling = seen.ceiling * math.exp(self.hyper_lr / 4)
        lr = clamp(min(rate.lr * factor, ceiling), self.start / self.bound, self.start * self.bound, keep=rate.lr)

        n, averaged = seen.seen, 0 if early else seen.averaged + 1
        if not math.isfinite(seen.length) or flat > self.climb:  # nothing yet, or too small for the dtype until now
            mean = length
        else:
            mean = (n * seen.length + length) / (n + 1) if climbing else seen.length
        momentum = 0.0 if climbing else self.momentum
        # a direction that cannot be used poisons nothing
        before = plus(delta, momentum, rate.before) if math.isfinite(h) else rate.before
        parts = (
            LRState(lr, before, h),
            AutoState(early, n + 1, mean, flat, acts, first, smooth, best, False, ceiling, averaged),
        )
        newest = (self.recency + 1) / (averaged + self.recency) if averaged else 1.0
        return PlanState(1.0, lr, False, h, parts, newest, not climbing, momentum)

    def _stake(self, best: float, first: float) -> float:
        """What there is to lose: the best loss, or what has been gained so far; at least the noise."""
        return max(min(best, first - best), self.slack * first)

    def lost(self, state: PlanState) -> PlanState:
        """Retreat: to the last good weights, which are then believed whatever their loss, at a lower rate."""
        rate, seen = state.parts
        # the climb may have been a step too far before; and it had no momentum, which makes steps 1/(1 − μ) × as long
        factor = self.retreat * self.climb if seen.early else self.retreat
        longer = 1 / (1 - self.momentum) if seen.early else 1.0
        # without `before`: the direction that led here is no longer one to agree with
        rate = LRState(clamp(rate.lr / (factor * longer), self.start / self.bound, math.inf, keep=rate.lr))
        seen = seen._replace(early=False, returned=True, ceiling=rate.lr * math.sqrt(factor), averaged=0)
        return PlanState(1.0, rate.lr, True, math.nan, (rate, seen))


@dataclass(frozen=True)
class Grafted:
    """The direction of ``inner`` at ``times`` the length of Δ: Adam, Yogi and Adagrad under ``Auto``.

        direction = times · |Δ| / |inner(Δ)| · inner(Δ)

    Their directions have no unit, so the budget that Auto finds, in lengths of Δ, would mean nothing. (Agarwal et al.,
    *Learning Rate Grafting*, 2020.) Momentum has the unit and needs no graft. At times = 1 the local rate has to do
    the moving and rises until clients are damaged; 3 and 10 are equally good.
    """

    inner: ServerOptimizer
    times: float = 3.0

    def init(self) -> Moments:
        """That of the inner one."""
        return self.inner.init()

    def update(self, state: Moments, delta: Array) -> tuple[Array, Moments]:
        """The rescaled direction, and the inner one's next state."""
        direction, state = self.inner.update(state, delta)
        length = inner(direction, direction) ** 0.5
        scale = self.times * inner(delta, delta) ** 0.5 / length if length > 0 else 0.0
        return direction * float(scale), state


def auto(*, local_lr: float = 0.01, global_lr: float = 1.0) -> Auto:
    """The plan to use when you do not know the rates: it starts from these, or lower, and finds its own."""
    return Auto(local_lr=local_lr, global_lr=global_lr)
