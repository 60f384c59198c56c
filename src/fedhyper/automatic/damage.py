"""Whether the weights were damaged, by the losses that clients met at them: one odd cohort, or liar, cannot fake it.

    ℓ        median of the last ``voices`` clients' losses at the weights they were sent
    recent   median of the last ``voices`` ℓ that were believed
    damaged  ℓ − recent > max(share · (first − recent), unit, width)
    harmed   ℓ > first + margin in most of ``voices`` rounds, of twice as many the next time, and so on
    good     neither ℓ nor this round's own median is above recent or first

``first`` is the first round's ℓ, ``unit`` what the median client gained in the start, ``width`` how far clients
differed in the round before. Only differences are compared, so any loss will do, negative ones too. Half of the voices
have to agree; nothing is remembered for more than ``voices`` rounds but ``first`` and how often there was harm.

Either is an alarm. A host that can ask many clients does so before it goes back, and where what is kept is surely
better than what would be returned to, the alarm is ``refuted``: with few clients a round, and few classes each, losses
at the newest weights rise and fall while the mean of the last rounds learns (docs/results/start.md).

Damage is an accident, harm a rate that was wrong from the beginning: a run that keeps losing has no ``recent`` to fall
from. The spans double because a lower rate needs longer to show that it gains; where classes are few a good run too
lies above ``first`` for about ten rounds. (Tried and worse: measuring damage from ``first`` where that is lower, and no
rise while ℓ lies above it; 87.9 → 64.9 % in setting 18 of docs/results/start.md.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal, NamedTuple

from fedhyper.settings import check_settings, setting


class DamageState(NamedTuple):
    """What was heard so far."""

    first: float = math.nan
    heard: tuple[float, ...] = ()  # the last clients' losses
    recent: tuple[float, ...] = ()  # the last ℓ that were believed
    width: float = 0.0  # how far clients differed when they were believed last
    verdict: Literal["good", "fair", "damaged", "harmed"] = "good"
    rounds: int = 0  # of the span in which harm is looked for
    worse: int = 0  # and in how many of them ℓ was above the first
    harms: int = 0  # how often it was found
    margin: float = 0.0  # by how much ℓ has to lie above ``first``: how far clients differ at the first weights

    def differing(self, losses: Sequence[float]) -> DamageState:
        """The same, with how far these clients differ for a margin."""
        return self._replace(margin=_width(losses))


@dataclass(frozen=True)
class Damage:
    """When to go back to the last good weights.

    share   of what has been gained so far that has to be lost again
    voices  losses that decide
    """

    share: float = setting(
        0.8,
        "share of what was gained so far whose loss is damage; at 1 a model that guesses goes unseen",
        above=0,
        high=1,
    )
    voices: int = setting(10, "losses that decide; raising it is slower and surer", low=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> DamageState:
        """Nothing heard yet."""
        return DamageState()

    def meet(self, state: DamageState, losses: Sequence[float]) -> DamageState:
        """Losses at the first weights, while these wait: what everything later is compared with."""
        heard = (*state.heard, *(loss for loss in losses if math.isfinite(loss)))
        return state._replace(heard=heard, first=median_low(heard), margin=_width(heard)) if heard else state

    @staticmethod
    def met(state: DamageState) -> DamageState:
        """The first weights wait no longer: what was heard of them is what there was to lose."""
        return DamageState(state.first, (), (state.first,) if state.heard else (), state.margin, margin=state.margin)

    def update(
        self,
        state: DamageState,
        losses: Sequence[float],
        unit: float,
        *,
        refuted: bool = False,
        alarm: float = math.inf,
    ) -> DamageState:
        """``losses``: each client's, or their mean; none: nothing is known, and nothing is held against the weights.

        ``alarm``: how far above ``first`` this round's median counts as harm at once, of three clients or more, before
        ``voices`` have been heard. Where nobody can be asked, a start that wrecks the model must not be listened to.
        """
        if refuted:  # what was heard has misled, and listening begins anew
            return state._replace(heard=(), verdict="fair", rounds=0, worse=0)
        if not losses:
            return state._replace(verdict="good")
        clean = tuple(loss if math.isfinite(loss) else math.inf for loss in losses)
        heard = (*state.heard, *clean)[-max(self.voices, len(clean)) :]
        now = median_low(heard)
        first = state.first if math.isfinite(state.first) else now
        if len(state.heard) < self.voices and len(clean) > 2 and median_low(clean) - first > alarm:
            return DamageState(first, verdict="harmed", harms=state.harms, margin=state.margin)
        recent = median_low(state.recent) if state.recent else first
        limit = max(self.share * (first - recent), unit, state.width)
        if state.recent and len(heard) >= self.voices and now - recent > limit:
            return state._replace(heard=(), verdict="damaged")
        # with few clients a round most of ``heard`` is about older weights: this round's own have to agree
        met = max(now, median_low(clean))
        verdict: Literal["good", "fair"] = "good" if met <= min(recent, first) else "fair"
        believed = (*state.recent, now)[-self.voices :] if math.isfinite(now) else state.recent
        rounds, worse = state.rounds + 1, state.worse + (now > first + state.margin)
        if rounds >= self.voices << state.harms:
            if 2 * worse > rounds:
                return DamageState(first, verdict="harmed", harms=state.harms + 1, margin=state.margin)
            rounds = worse = 0
        return DamageState(first, heard, believed, _width(heard), verdict, rounds, worse, state.harms, state.margin)


def _width(values: Sequence[float]) -> float:
    """How far clients differ: twice the way from the lower quartile to the median; what lies above adds nothing. Of
    three or four the lowest may be an odd one: at most three times the way from the median to the highest."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return 0.0
    middle = finite[(len(finite) - 1) // 2]
    below, above = middle - finite[(len(finite) - 1) // 4], finite[-1] - middle
    return 2 * (min(below, 3 * above) if 2 < len(finite) < 5 else below)
