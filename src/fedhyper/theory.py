"""Theorem 1's constants: what the bounds on the rates cost in the worst case."""

from __future__ import annotations

import math
from typing import NamedTuple


class Theorem1(NamedTuple):
    """P, Q, and the rate of convergence they give: ``error = P/√(MkT) + Q/(kT)``, up to the constant inside O(·)."""

    P: float
    Q: float
    error: float


def theorem1(
    *,
    global_bound: float,
    local_bound: float,
    variance: float,
    dissimilarity: float,
    clients_per_round: int,
    local_steps: int,
    rounds: int,
) -> Theorem1:
    """Theorem 1, min_t E|∇F(w_t)|² < O(P/√(MkT) + Q/(kT)), with

        P = (γ_β⁴ σ² + 1) γ_α                                                                               (Eq. 22)
        Q = M σ² ([(k−1)γ_β⁴ + 1]² − γ_β⁻²) + M ρ² ([(k−1)γ_β² + 1]² − γ_β⁻² [(k−1)γ_β⁻² + 1])              (Eq. 23)

    in units of |∇F|². The appendix writes bounds for |a|₂ and means |a|₂², a's entries being at most γ_β². Read so,
    the formulas are right as printed, and so computed; Eq. 23 squares a bound once more than needed and is looser.

    global_bound   γ_α ≥ 1, a factor; raising it raises P
    local_bound    γ_β ≥ 1, a factor; raising it raises P and Q, fast
    variance       σ² ≥ 0, of a client's gradients; raising it raises P and Q
    dissimilarity  ρ² ≥ 0, of the clients; raising it raises Q
    clients_per_round, local_steps   M clients ≥ 1 in a round, each with k ≥ 1 steps
    rounds         T ≥ 1; raising it lowers the error
    """
    for name, value, low in (
        ("global_bound", global_bound, 1),
        ("local_bound", local_bound, 1),
        ("variance", variance, 0),
        ("dissimilarity", dissimilarity, 0),
        ("clients_per_round", clients_per_round, 1),
        ("local_steps", local_steps, 1),
        ("rounds", rounds, 1),
    ):
        if not (math.isfinite(value) and value >= low):
            raise ValueError(f"{name} must be finite and at least {low}, got {value!r}")
    M, k, T = clients_per_round, local_steps, rounds
    g2, g4 = local_bound**2, local_bound**4
    P = (g4 * variance + 1) * global_bound
    noise = ((k - 1) * g4 + 1) ** 2 - 1 / g2
    drift = ((k - 1) * g2 + 1) ** 2 - ((k - 1) / g2 + 1) / g2
    Q = M * variance * noise + M * dissimilarity * drift
    return Theorem1(P, Q, P / math.sqrt(M * k * T) + Q / (k * T))
