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
from typing import ClassVar, Literal, NamedTuple

from fedhyper.arrays import cosine, is_number
from fedhyper.averages import LastRounds
from fedhyper.guard import check_positive, clamp
from fedhyper.optimizers import Momentum
from fedhyper.plan import PlanState, Seen


class AutoState(NamedTuple):
    """What ``Auto`` remembers beside the rate. Lengths are ln(|Δ_m|²/β²)."""

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
    requires: ClassVar[frozenset[str]] = frozenset(("delta", "loss", "sq_norm"))
    compares: ClassVar[Literal["step"]] = "step"
    products_only: ClassVar[bool] = True
    graft: ClassVar[float] = 3.0

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
    def start(self) -> float:
        """The first round's local rate."""
        return min(self.local_lr * self.global_lr, self.probe)

    @property
    def optimizer(self) -> Momentum:
        """The server's step has momentum."""
        return Momentum(momentum=self.momentum)

    @property
    def average(self) -> LastRounds:
        """A mean of the last few rounds."""
        return LastRounds(self.recency)

    def init(self) -> PlanState:
        """The whole budget as the local rate."""
        return PlanState(1.0, self.start, "trial", 0.0, AutoState())

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """Climb, follow or retreat. A round without a loss says nothing about damage; what was known of it stays."""
        rate, old = state.local_lr, state.memory
        loss, sq_norm = seen.loss, seen.sq_norm
        first = loss if math.isnan(old.first) and loss is not None else old.first
        known = loss is not None and not math.isnan(old.first)
        damaged = known and not old.returned and loss - old.best > self._stake(old.best, first)
        if damaged or not (loss is None or math.isfinite(loss)) or not 0 <= sq_norm < math.inf:
            return self.nonsense(state)
        length = math.log(sq_norm) - 2 * math.log(rate) if sq_norm else old.length
        flat = math.exp(min(length - old.length, 700.0)) if math.isfinite(old.length) and sq_norm else 1.0
        if old.early and old.flat < 1 and flat > self.climb:  # it flattened and now shoots up: clients diverge
            return self.nonsense(state)

        smooth, best, p, falls = old.smooth, old.best, 0.0, False
        if loss is not None:
            smooth = (1 - self.smoothing) * smooth + self.smoothing * loss if known else loss
            best = min(best, smooth)
            stake = self._stake(best, first)
            p = min((smooth - best) / stake, 1.0) if stake > 0 else 0.0
            falls = loss < (1 - self.slack / 8) * first
        h = float(cosine(seen.delta, seen.before))
        # with one local step |Δ_m|²/β² cannot fall, but the loss can: either says that the rate has begun to act
        acts = flat < self.saturated or falls
        early = old.early and not smooth < (1 - self.slack) * first
        climbing = early and not (acts and old.acts)  # one such round may be an odd cohort: wait for the next
        if climbing:
            factor = 1.0 if acts else self.climb**2 if rate < self.probe else self.climb
        else:
            factor = math.exp(self.hyper_lr * (h + self.drive - self.brake * p * p))
        # forgotten in some ten rounds: where cohorts differ the alarm may have been false
        ceiling = old.ceiling * math.exp(self.hyper_lr / 4)
        lr = clamp(min(rate * factor, ceiling), self.start / self.bound, self.start * self.bound, keep=rate)

        n = old.seen
        if not math.isfinite(old.length) or flat > self.climb:  # nothing yet, or too small for the dtype until now
            mean = length
        else:
            mean = (n * old.length + length) / (n + 1) if climbing else old.length
        memory = AutoState(early, n + 1, mean, flat, acts, first, smooth, best, False, ceiling)
        return PlanState(1.0, lr, "trial" if climbing else "good", h, memory)

    def _stake(self, best: float, first: float) -> float:
        """What there is to lose: the best loss, or what has been gained so far; at least the noise."""
        return max(min(best, first - best), self.slack * first)

    def nonsense(self, state: PlanState) -> PlanState:
        """Retreat: to the last good weights, which are then believed whatever their loss, at a lower rate."""
        old = state.memory
        # the climb may have been a step too far before; and it had no momentum, which makes steps 1/(1 − μ) × as long
        factor = self.retreat * self.climb if old.early else self.retreat
        longer = 1 / (1 - self.momentum) if old.early else 1.0
        lr = clamp(state.local_lr / (factor * longer), self.start / self.bound, math.inf, keep=state.local_lr)
        memory = old._replace(early=False, returned=True, ceiling=lr * math.sqrt(factor))
        return PlanState(1.0, lr, "damaged", math.nan, memory)


def auto(*, local_lr: float = 0.01, global_lr: float = 1.0) -> Auto:
    """The plan to use when you do not know the rates: it starts from these, or lower, and finds its own."""
    return Auto(local_lr=local_lr, global_lr=global_lr)
