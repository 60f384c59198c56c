"""How private a run was: ε(δ) of rounds with Poisson sampling and Gaussian noise.

By Rényi divergences at whole orders (Mironov, Talwar, Zhang 2019), which have a closed form; tests hold it equal to
dp-accounting's at the same orders. Not for a fixed number of clients a round: there one client more is another one
less, the sum moves by twice as much, and the known bound (Wang, Balle, Kasiviswanathan 2019) is several times as high.
"""

from __future__ import annotations

import math
from functools import cache

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)


def epsilon(noise: float, share: float, rounds: int, delta: float) -> float:
    """ε(δ) after ``rounds``, each a sum of sensitivity 1 with noise of deviation z, clients chosen at q = ``share``."""
    if rounds == 0:
        return 0.0
    return max(0.0, min(_at(order, rounds * _divergence(order, share, noise), delta) for order in ORDERS))


def _at(order: int, divergence: float, delta: float) -> float:
    """ε from the divergence of one order (Canonne, Kamath, Steinke 2020)."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@cache
def _divergence(order: int, share: float, noise: float) -> float:
    """D_α of one round: log Σ_k C(α, k) (1 − q)^(α−k) q^k e^(k(k−1)/2z²) / (α − 1), summed as logarithms."""
    if share >= 1:
        return order / (2 * noise**2)
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + k * math.log(share) + (order - k) * math.log1p(-share) + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    highest = max(terms)
    return (highest + math.log(math.fsum(math.exp(term - highest) for term in terms))) / (order - 1)
