"""What may be believed: the clamp every rate goes through, the checks every reply goes through, and what it may weigh.

No client moves a run by more than its share: what an update weighs in a mean is limited first by how hard it pulls
(``fair_weights``), then by whether it pulls against the others (``not_against``). Every host asks both: the simulator,
Flower's strategy, and ``Server``. What they cost, and what they hold, is in docs/security.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from statistics import median, median_low

from fedhyper.arrays import Array, elementwise, in_pieces, is_number, isfinite, where

NORM_CAP = 3.0  # medians: what it costs clean runs, and what it keeps from hostile ones, is in docs/security.md
AGAINST = 0.2  # of the way the others make together: what one client may cost them
WEIGHT_CAP = 10.0  # medians: about Dirichlet 0.1's largest client; who claims more and hardly moves holds the rest back
ENDLESS = "non-finite"  # why an update is refused that a rate which is too high makes of an honest client's
_ROUNDING = 1e-3  # of a client's own square: who is alone in moving opposes nobody by more


def clamp(value: Array, low: float, high: float, keep: Array) -> Array:
    """``min(max(value, low), high)``, or ``keep`` where value is NaN or infinite.

    Bare ``min`` and ``max`` are not enough: ``min(1.1, nan)`` is 1.1, and ``nan < low`` is false.
    """
    if is_number(value):
        return min(max(float(value), low), high) if math.isfinite(value) else keep
    return where(isfinite(value), elementwise("clip", value, low, high), keep)


def all_finite(array: Array) -> bool:
    """Whether every number of ``array``, of each of its pieces, is finite. A sum of squares would also refuse 1e200."""
    if in_pieces(array):
        return all(all_finite(piece) for piece in (array.values() if isinstance(array, dict) else array))
    if hasattr(array, "double") and math.isfinite(array.sum()):
        return True  # one pass over it, and no sum of numbers is finite if one is not. NumPy would warn of an overflow
    finite = isfinite(array)
    return finite if isinstance(finite, bool) else bool(finite.all())


def reject_reason(delta: Array, like: Array, examples: object) -> str | None:
    """Why one client's update must not enter the mean, or None when it may.

    ``like`` has the shape that is expected; ``examples`` is the weight the client claims.
    """
    if not is_number(examples):
        return f"weight is {type(examples).__name__}, not a number"
    if not 0 < examples <= sys.float_info.max:  # an int may lie beyond every float
        return f"weight {examples} is not finite and positive"
    if tuple(delta.shape) != tuple(like.shape):
        return f"shape {tuple(delta.shape)}, expected {tuple(like.shape)}"
    if not all_finite(delta):
        return ENDLESS
    return None


def fair_weights(
    weights: Sequence[float], norms: Sequence[float], norm_cap: float = NORM_CAP, weight_cap: float = WEIGHT_CAP
) -> list[float]:
    """What each client's update may weigh, so that none moves a run by more than its share.

    weights     what the clients claim, each above 0
    norms       |Δ_m|, finite
    norm_cap    strongest pull w_m·|Δ_m|, in medians of the round, above 0; raising it cuts less. Nobody pulls harder
                than the strongest but a fifth (the third of ten), either
    weight_cap  largest weight, in medians of the round, above 0; raising it believes more

    A pull that is too strong costs the client weight: no array is touched, and whoever makes the mean can be told. The
    median is over clients that moved: one that sends zeros cannot lower it.

    The strongest but a fifth costs clean runs little, but a third of hostile clients set it themselves: hence the
    medians. Medians alone, 1.5 of them, cost a point where clients differ. What else was tried is in docs/security.md.
    """
    fair = [float(weight) for weight in weights]
    heaviest = weight_cap * median_low(fair) if fair else 0.0
    fair = [min(weight, heaviest) for weight in fair]
    return _cut(fair, norms, lambda pulls: _most(pulls, norm_cap * median(pulls)))


def _cut(weights: Sequence[float], norms: Sequence[float], most: Callable[[list[float]], float]) -> list[float]:
    """The weights, less where the pull would be stronger than ``most`` makes of the pulls of all that moved."""
    pulls = [weight * norm for weight, norm in zip(weights, norms, strict=True)]
    moved = [pull for pull in pulls if pull > 0]
    strongest = most(moved) if moved else 0.0
    return [w if pull <= strongest else w * (strongest / pull) for w, pull in zip(weights, pulls, strict=True)]


def _most(values: Sequence[float], most: float) -> float:
    """``most``, or the largest value when a fifth of them are left out: at least one, and none where there are two."""
    return min(most, sorted(values)[-1 - min(max(len(values) // 5, 1), (len(values) - 1) // 2)])


def judging_weights(weights: Sequence[float], norms: Sequence[float]) -> list[float]:
    """What each weighs, of its fair weight, in the sum that ``not_against`` judges others by: nobody pulls harder than
    the median. By three medians each, three hostile clients of ten would be that sum."""
    return _cut(weights, norms, median)


def not_against(weights: Sequence[float], squares: Sequence[float], along: Sequence[float]) -> list[float]:
    """What is left of the weights so that no client takes back more than a fifth of the way the others make together:

        S = Σ u_m Δ_m,  R_m = S − u_m Δ_m:      −<w_m Δ_m, R_m> ≤ 0.2 |R_m|²

    weights  w: those of ``fair_weights``, or all of them in another unit
    squares  |Δ_m|²
    along    <Δ_m, S>, with u the ``judging_weights`` of the same weights and lengths

    By lengths alone a client that turns its update round pulls back as hard as another pulls. All are judged with the
    weights they come with. The worst first, or all again with what is left, is no better (docs/security.md).
    """
    judging = judging_weights(weights, [math.sqrt(square) for square in squares])
    whole = sum(u * shared for u, shared in zip(judging, along, strict=True))
    left = []
    for weight, u, square, shared in zip(weights, judging, squares, along, strict=True):
        against, others = -weight * (shared - u * square), whole - 2 * u * shared + u * u * square
        most = max(AGAINST * others, _ROUNDING * weight * weight * square)
        left.append(weight * (most / against) if against > most else weight)  # NaN is not: what has no measure stays
    return left


def bounded(values: Sequence[float], factor: float) -> list[float]:
    """Numbers that clients report, none of them below 0: at most ``factor`` medians each, nor more than all but a fifth
    report; not finite: the median."""
    known = [value for value in values if 0 <= value < math.inf]
    middle = median_low(known) if known else 0.0
    most = _most(known, factor * middle) if known else 0.0
    return [min(value, most) if 0 <= value < math.inf else middle for value in values]
