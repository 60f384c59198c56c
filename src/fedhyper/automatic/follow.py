"""After the start: the rate follows the hypergradient, within a rung, in steps that shrink.

    c ← clip(c + gain/(t + wait) · h, ± ln r),     β_t = β · e^c,     h = cos(Δ_t, M_t-1)

M is the step the server made last, momentum in it: h is FedHyper's hypergradient <Δ_t, Δ_t-1> of the step that was
really made, without its unit. The steps sum to a logarithm, so an h that is always wrong moves the rate as a power of t
and never past the clip: it can neither freeze a run nor run away with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedhyper.settings import check_settings, setting


@dataclass(frozen=True)
class Follow:
    """How far the rate has moved from the ladder's, as a logarithm.

    ratio  r: the rate stays within a factor r of the ladder's
    gain   step size of ln β at first, in rounds
    wait   rounds after which that step has halved
    """

    ratio: float = setting(10**0.5, "the rate stays within this factor of the one it started with", low=1)
    gain: float = setting(2.0, "step of the rate's logarithm, in rounds; raising it follows faster and noisier", low=0)
    wait: float = setting(10.0, "rounds until that step has halved; raising it follows longer", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self) -> float:
        """The ladder's own rate."""
        return 0.0

    def update(self, c: float, h: float, t: int) -> float:
        """``h`` in [−1, 1], ``t`` rounds so far, counted from 0. An h that is not a number moves nothing."""
        limit = math.log(self.ratio)
        return min(max(c + self.gain / (t + self.wait) * h, -limit), limit) if math.isfinite(h) else c
