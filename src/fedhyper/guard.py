"""What may be believed: the clamp every rate goes through, and the checks every reply goes through."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import median, median_low

from fedhyper.arrays import Array, elementwise, in_pieces, is_number, isfinite, where

NORM_CAP = 1.5  # medians: what it costs clean runs, and what it keeps from hostile ones, is in docs/security.md
WEIGHT_CAP = 10.0  # medians: about Dirichlet 0.1's largest client; who claims more and hardly moves holds the rest back


def clamp(value: Array, low: float, high: float, keep: Array) -> Array:
    """``min(max(value, low), high)``, or ``keep`` where value is NaN or infinite.

    Bare ``min`` and ``max`` are not enough: ``min(1.1, nan)`` is 1.1, and ``nan < low`` is false.
    """
    if is_number(value):
        return min(max(float(value), low), high) if math.isfinite(value) else keep
    return where(isfinite(value), elementwise("clip", value, low, high), keep)


def check_positive(name: str, value: object) -> None:
    """Refuse a setting that is not a finite number above 0."""
    if not (is_number(value) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def all_finite(array: Array) -> bool:
    """Whether every number of ``array``, of each of its pieces, is finite. A sum of squares would also refuse 1e200."""
    if in_pieces(array):
        return all(all_finite(piece) for piece in (array.values() if isinstance(array, dict) else array))
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
        return "non-finite"
    return None


def fair_weights(
    weights: Sequence[float], norms: Sequence[float], norm_cap: float = NORM_CAP, weight_cap: float = WEIGHT_CAP
) -> list[float]:
    """What each client's update may weigh, so that none moves a run by more than its share.

    weights     what the clients claim, each above 0
    norms       |Δ_m|, finite
    norm_cap    strongest pull w_m·|Δ_m|, in medians of the round, above 0; raising it cuts less
    weight_cap  largest weight, in medians of the round, above 0; raising it believes more

    A pull that is too strong costs the client weight: no array is touched, and whoever makes the mean can be told. The
    median is over clients that moved: one that sends zeros cannot lower it. With a share p of hostile clients that all
    pull one way the mean keeps its sign while p < ρ/(ρ + norm_cap), ρ ≤ 1 being how far the honest agree.

    Tried by lengths alone, and no better: the third strongest pull of ten, a share of all pulls, the distance from the
    last mean. What needs every inner product is better, and in docs/security.md.
    """
    fair = [float(weight) for weight in weights]
    heaviest = weight_cap * median_low(fair) if fair else 0.0
    fair = [min(weight, heaviest) for weight in fair]
    pulls = [weight * norm for weight, norm in zip(fair, norms, strict=True)]
    moved = [pull for pull in pulls if pull > 0]
    strongest = norm_cap * median(moved) if moved else 0.0
    return [w if pull <= strongest else w * (strongest / pull) for w, pull in zip(fair, pulls, strict=True)]


def bounded(values: Sequence[float], factor: float) -> list[float]:
    """Numbers that clients report, none of them below 0: at most ``factor`` medians each; not finite: the median."""
    known = [value for value in values if 0 <= value < math.inf]
    middle = median_low(known) if known else 0.0
    return [min(value, factor * middle) if 0 <= value < math.inf else middle for value in values]
