"""What has to be known about Flower's own strategies to wrap them; any other strategy is taken as it comes."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

# They average first and then make a step of the average; all keep the step's memory in these attributes, which they
# replace and never change in place.
_STEPPING = (FedAvgM, FedAdam, FedAdagrad, FedYogi)
_MEMORY = ("momentum_vector", "m_t", "v_t")


def steps(strategy: Strategy) -> bool:
    """Whether the result is a step made from the mean of the replies, and not an aggregate of them."""
    if isinstance(strategy, FedAvgM) and not strategy.server_opt:
        return False
    return isinstance(strategy, _STEPPING)


def pure_mean(strategy: Strategy) -> bool:
    """Whether aggregating is Flower's own weighted mean and nothing else, so that it may be done over again.

    A mean is finite only if every number in it is: looking at the result then looks at all replies.
    """
    function = getattr(strategy, "train_metrics_aggr_fn", None)
    ours = getattr(function, "__module__", "").startswith("flwr.")
    return type(strategy).aggregate_train is FedAvg.aggregate_train and ours


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
