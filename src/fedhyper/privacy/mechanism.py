"""What is done to updates in a private run: clipped, averaged, and hidden in noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedhyper.arrays import Array, each, inner, plus
from fedhyper.automatic.ladder import LOWEST
from fedhyper.privacy.accountant import epsilon
from fedhyper.settings import check_settings, setting

_COUNTING = 20.0  # Andrew et al.: noise on the count of clients below the clipping length, M/20
_PACE = 0.2  # and the step of its logarithm


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How private a run is. Its noise comes from the run's seed: whoever knows the seed can take it off again."""

    noise: float = setting(
        1.0,
        "z: standard deviation of the noise on the sum of updates, in clipping lengths; raising it hides more",
        low=1e-9,  # of less the square is soon no number any more, and it hides nothing
    )
    clip: float = setting(
        1.0, "C: longest update, in units of weights; raising it cuts less and adds more noise", above=0
    )
    adaptive: bool = setting(True, "C follows the median length of updates, which is measured with noise, too")
    delta: float = setting(
        1e-5,
        "δ: chance that the promise fails, well below 1/clients; raising it lowers the ε that is told",
        above=0,
        below=1,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def clipped(self, update: Array, clip: float) -> tuple[Array, bool]:
        """The update, no longer than ``clip``, and whether it was not before."""
        length = math.sqrt(float(inner(update, update)))
        below = length <= clip
        return (update if below else each(lambda x: x * (clip / length), update)), below

    def mean(self, total: Array, normal: Array, clip: float, asked: int) -> Array:
        """The noisy mean of clipped updates that sum to ``total``; ``normal`` has standard normal numbers."""
        return each(lambda x: x / asked, plus(total, self.on_updates(asked) * clip, normal))

    def next_clip(self, clip: float, below: int, came: int, normal: float, asked: int) -> float:
        """C for the next round: C ← C · e^(−0.2 (share that was not cut − 1/2)); ``below`` of those that ``came``.

        Summed up is ±1/2 a client, which nobody can move by more than 1/2, and then it has its noise.
        """
        if not self.adaptive:
            return clip
        above_half = (below - came / 2 + asked / _COUNTING * normal) / asked
        return clip * math.exp(-_PACE * min(max(above_half, -0.5), 0.5))

    def counted(self, rungs: Sequence[int], normal: Sequence[float]) -> tuple[tuple[int, float], ...]:
        """Votes for rates, from a histogram with noise: one number a rung from LOWEST to HIGHEST, each client in one.

        As much noise as a sum of updates has, so the start costs as much as one round more. What could be noise alone
        (below three deviations) is no vote; what voters gained is not told.
        """
        counts = [rungs.count(LOWEST + i) + self.noise * noise for i, noise in enumerate(normal)]
        clear = [(LOWEST + i, round(count)) for i, count in enumerate(counts) if count > 3 * self.noise]
        return tuple((rung, 0.0) for rung, count in clear for _ in range(count))

    def on_updates(self, asked: int) -> float:
        """z of the updates at M = ``asked``: where the count has noise, too, theirs is more: both are worth z."""
        if not self.adaptive:
            return self.noise
        counted = asked / _COUNTING
        left = self.noise**-2 - (2 * counted) ** -2
        if left <= 0:
            raise ValueError(
                f"privacy.noise = {self.noise:g} is too much for an adaptive clip with {asked} clients a round; "
                f"use more than {math.ceil(self.noise * _COUNTING / 2)} clients a round, or adaptive = false"
            )
        return float(left**-0.5)

    def epsilon(self, rounds: int, share: float) -> float:
        """ε(δ) after so many rounds, in each of which a client took part with probability ``share``.

        For one client more or less, each chosen by a coin of its own.
        """
        return epsilon(self.noise, share, rounds, self.delta)
