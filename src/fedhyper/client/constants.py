"""The constants of the clients' rules, their only defaults, apart from the rules: a config is checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedhyper.settings import check_settings, setting

LocalOptimizer = Literal["sgd", "momentum", "nesterov", "adam", "adamw"]  # what plain local training may step with


@dataclass(frozen=True, kw_only=True)
class ProximalConstants:
    """FedProx: g + μ (w − w_t)."""

    mu: float = setting(0.01, "μ; raising it holds clients nearer to the weights they were sent", low=0, high=1e6)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class DeltaConstants:
    """Δ-SGD, as its paper has them."""

    gamma: float = setting(2.0, "γ, trust in the measured smoothness; raising it raises the rate", above=0)
    delta: float = setting(0.1, "δ, how fast the rate may grow; raising it lets it grow faster", low=0)
    eta0: float = setting(
        0.2, "the rate of a client's first step in a round; raising it lengthens that step", above=0, high=1e6
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class PolyakConstants:
    """FedSPS, as its paper has them."""

    c: float = setting(0.5, "c, divides the Polyak step; raising it lowers the rate", above=0)
    floor: float = setting(
        0.0, "F*, a lower bound of the loss, in its unit; raising it lowers the rate", cure="0 suits cross-entropy"
    )

    def __post_init__(self) -> None:
        check_settings(self)
