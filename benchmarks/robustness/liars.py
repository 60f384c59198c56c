"""``method = "fedhyper-liars"``: fedhyper among clients that lie about their loss; a plug-in, see docs/extend.md.

    options.lie     "times 3", "1e9", "-1e9", "nan" or "absent": what they report in place of their loss
    options.liars   how many of a round's clients
    options.once    in one round only, the eleventh, not in all

The simulator's clients are honest, so the lie is told where the plan listens: the first losses are replaced, and in the
start what these clients gained. A loss that is 1e9 whatever the rate gives no vote, nor does NaN; three times the loss
gives the honest vote. Clients that lie about votes or updates: benchmarks/hostile.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedhyper.automatic.auto import Auto
from fedhyper.plan import PlanState, Seen
from fedhyper.settings import check_settings, setting
from fedhyper.sim.methods import Given, Method

WHEN = 10  # rounds before the one lie
SAID = {"1e9": 1e9, "-1e9": -1e9, "nan": math.nan}


@dataclass(frozen=True, kw_only=True)
class Lie:
    """What liars do."""

    lie: str = setting("nan", "what is reported in place of the loss", choices=("times 3", *SAID, "absent"))
    liars: int = setting(1, "clients of a round that lie; raising it is harder to bear", low=0)
    once: bool = setting(False, "whether they lie in one round only")

    def __post_init__(self) -> None:
        check_settings(self)

    def told(self, seen: Seen) -> Seen:
        """The round as the server hears of it."""
        liars, honest = seen.losses[: self.liars], seen.losses[self.liars :]
        votes = seen.votes
        if self.lie == "times 3":
            losses = (*(3 * loss for loss in liars), *honest)
            votes = votes and (*((rung, 3 * gain) for rung, gain in votes[: self.liars]), *votes[self.liars :])
        else:
            losses = honest if self.lie == "absent" else (*[SAID[self.lie]] * len(liars), *honest)
            votes = votes and votes[self.liars :]
        return seen._replace(losses=losses, votes=votes)


@dataclass(frozen=True, kw_only=True)
class Deceived(Auto):
    """The plan, told lies."""

    story: Lie

    def update(self, state: PlanState, seen: Seen) -> PlanState:
        """As if the lie were true."""
        lied = not self.story.once or state.memory.t == WHEN
        return super().update(state, self.story.told(seen) if lied else seen)


def fedhyper_liars(given: Given) -> Method:
    """fedhyper, and what its liars do."""
    story = given.make(Lie)
    return Method(
        name=given.name,
        plan=given.make(Deceived, local_lr=given.local_lr, global_lr=given.global_lr, story=story),
    )
