"""What has to be known about Flower's own strategies to wrap them; any other strategy is taken as it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy
from numpy.typing import NDArray

# They average first and then make a step of the average; all keep the step's memory in these attributes, which they
# replace and never change in place.
_STEPPING = (FedAvgM, FedAdam, FedAdagrad, FedYogi)
_MEMORY = ("momentum_vector", "m_t", "v_t")


def steps(strategy: Strategy) -> bool:
    """Whether the result is a step made from the mean of the replies, and not an aggregate of them."""
    if isinstance(strategy, FedAvgM) and not strategy.server_opt:
        return False
    return isinstance(strategy, _STEPPING)


def repeatable(strategy: Strategy) -> bool:
    """Whether aggregating is Flower's own weighted mean, or its own step of that mean, and may be done over again.

    A mean is finite only if every number in it is: looking at the result then looks at all replies.
    """
    function = getattr(strategy, "train_metrics_aggr_fn", None)
    ours = getattr(function, "__module__", "").startswith("flwr.")
    return ours and (type(strategy).aggregate_train is FedAvg.aggregate_train or readable(strategy))


def readable(strategy: Strategy) -> bool:
    """Whether Δ, the step's raw material, can be read back from the step's memory: see ``read_back``."""
    if type(strategy) is FedAvgM:
        return bool(strategy.server_momentum > 0)
    return type(strategy) in (FedAdam, FedAdagrad, FedYogi) and strategy.beta_1 < 1  # type: ignore[attr-defined]


def read_back(strategy: Any, before: dict[str, Any], name: str, out: NDArray[Any]) -> None:
    """Write Δ = w − mean of the replies, for one array, to ``out``.

    Flower's Adam and its kin keep m_t = β m_t-1 + (1 − β)(−Δ), its momentum v_t = μ v_t-1 + Δ; ``before`` is what
    ``memory`` gave before the step. Averaging ten replies over again takes five times as long.
    """
    if isinstance(strategy, FedAvgM):
        key, keep, scale = "momentum_vector", strategy.server_momentum, 1.0
        place: Any = list(strategy.current_arrays or {}).index(name)
    else:
        key, keep, scale, place = "m_t", strategy.beta_1, strategy.beta_1 - 1, name
    new, old = getattr(strategy, key)[place], before.get(key)
    if old is None:
        np.divide(new, scale, out=out)
    else:
        np.multiply(old[place], -keep, out=out)
        out += new
        out /= scale


def unitless(strategy: Strategy) -> bool:
    """Whether its step has no unit: Adam and its kin move every weight by about ``eta``, whatever the clients sent."""
    return isinstance(strategy, (FedAdam, FedAdagrad, FedYogi))


def weight_key(strategy: Strategy) -> str:
    """The metric by which the strategy weighs replies."""
    return strategy.weighted_by_key if isinstance(strategy, FedAvg) else "num-examples"


def memory(strategy: Strategy) -> dict[str, Any]:
    """The server optimizer's state: momentum, first and second moments; empty for a strategy without."""
    return {name: getattr(strategy, name) for name in _MEMORY if getattr(strategy, name, None) is not None}


def remember(strategy: Strategy, saved: dict[str, Any]) -> None:
    """Put back what ``memory`` gave; ``{}`` forgets everything."""
    for name in _MEMORY:
        if hasattr(strategy, name):
            setattr(strategy, name, saved.get(name))


def synchronize(strategy: Strategy, arrays: ArrayRecord) -> None:
    """FedAvgM steps from a copy of its own last result; make it the weights that are really sent."""
    if isinstance(strategy, FedAvgM):
        strategy.current_arrays = arrays
