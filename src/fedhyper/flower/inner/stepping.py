"""What has to be known about the steps of Flower's own strategies; any other strategy is taken as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Strategy,
)
from numpy.typing import NDArray

from fedhyper.arrays import each
from fedhyper.flower.inner.nesting import chain, innermost, private
from fedhyper.optimizers import Moments

# They average first and then make a step of the average; all keep the step's memory in these attributes, which they
# replace and never change in place.
_STEPPING = (FedAvgM, FedAdam, FedAdagrad, FedYogi)
_MEMORY = ("momentum_vector", "m_t", "v_t")
_ADAPTIVE = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyServerSideAdaptiveClipping)
_CLIPPING = "clipping_norm"  # adaptive clipping changes its own from round to round


def steps(strategy: Strategy) -> bool:
    """Whether the result is a step made from the mean of the replies, and not an aggregate of them."""
    inner = innermost(strategy)
    if isinstance(inner, FedAvgM) and not inner.server_opt:
        return False
    return isinstance(inner, _STEPPING)


def averages(strategy: Strategy) -> bool:
    """Whether aggregating is Flower's own weighted mean of the arrays and nothing else, with no code of an app's own
    in it that may look at them: then whoever has the replies open already may make the mean."""
    function = getattr(strategy, "train_metrics_aggr_fn", None)
    hooks = ("aggregate_train", "_check_and_log_replies")
    own = any(getattr(type(strategy), hook, None) is not getattr(FedAvg, hook, None) for hook in hooks)
    return not own and getattr(function, "__module__", "").startswith("flwr.")


def readable(strategy: Strategy) -> bool:
    """Whether Δ, the step's raw material, can be read back from the step's memory: see ``read_back``."""
    inner = innermost(strategy)
    if private(strategy):  # what they remember was clipped, and has no noise in it yet
        return False
    if type(inner) is FedAvgM:
        return bool(inner.server_momentum > 0)
    return type(inner) in (FedAdam, FedAdagrad, FedYogi) and inner.beta_1 < 1  # type: ignore[attr-defined]


def read_back(outer: Strategy, before: dict[str, Any], name: str) -> NDArray[Any]:
    """Δ = w − mean of the replies, for one array, in float32 or wider.

    Flower's Adam and its kin keep m_t = β m_t-1 + (1 − β)(−Δ), its momentum v_t = μ v_t-1 + Δ; ``before`` is what
    ``memory`` gave before the step. Averaging ten replies over again takes five times as long.
    """
    strategy: Any = innermost(outer)
    if isinstance(strategy, FedAvgM):
        key, keep, scale = "momentum_vector", strategy.server_momentum, 1.0
        place: Any = list(strategy.current_arrays or {}).index(name)
    else:
        key, keep, scale, place = "m_t", strategy.beta_1, strategy.beta_1 - 1, name
    new, old = getattr(strategy, key)[place], before.get(key)
    dtype = np.result_type(np.float32, new)
    if old is None:
        out: NDArray[Any] = np.divide(new, scale, dtype=dtype)
    else:
        out = np.multiply(old[place], -keep, dtype=dtype)
        out += new
        out /= scale
    return np.asarray(out)  # of an array without axes NumPy makes a number


@dataclass(frozen=True)
class OwnStep:
    """Stands for the inner strategy's own step in the server loop, which is given the result (``stepped``).

    unitless  whether its steps have no unit: Adam and its kin move every weight by about ``eta``, whatever came in
    """

    unitless: bool

    def init(self) -> Moments:
        """Nothing: the inner strategy remembers what it needs."""
        return Moments()

    def update(self, state: Moments, delta: Any) -> tuple[Any, Moments]:
        """Never asked for as long as there is a ``stepped``; without one, the aggregate."""
        return delta, state


def optimizer(strategy: Strategy, *, seen: bool) -> OwnStep | None:
    """What makes a step of Δ in the server loop; None: the plan's own choice.

    ``seen``: whether Δ itself is, and not only the step that was made of it, which then stands for both. A step with
    noise in it is left as it is, too: a length of our choice would be the noise's length.
    """
    unitless = seen and not private(strategy) and isinstance(innermost(strategy), (FedAdam, FedAdagrad, FedYogi))
    return OwnStep(unitless) if steps(strategy) else None


def memory(strategy: Strategy) -> dict[str, Any]:
    """What changes from round to round: momentum, first and second moments, an adaptive clipping norm."""
    inner = innermost(strategy)
    held = {name: getattr(inner, name, None) for name in _MEMORY}
    # of arrays without axes Flower keeps numbers, and a number in a checkpoint has no precision
    known = {name: each(np.asarray, value) for name, value in held.items() if value is not None}
    norms = [one.clipping_norm for one in chain(strategy) if isinstance(one, _ADAPTIVE)]
    return known | ({_CLIPPING: norms} if norms else {})


def remember(strategy: Strategy, saved: dict[str, Any]) -> None:
    """Put back what ``memory`` gave; ``{}`` forgets the moments."""
    inner = innermost(strategy)
    for name in _MEMORY:
        if hasattr(inner, name):
            setattr(inner, name, saved.get(name))
    wrappers = [one for one in chain(strategy) if isinstance(one, _ADAPTIVE)]
    for wrapper, norm in zip(wrappers, saved.get(_CLIPPING, ()), strict=False):
        wrapper.clipping_norm = norm


def synchronize(strategy: Strategy, arrays: ArrayRecord) -> None:
    """FedAvgM steps from a copy of its own last result; make it the weights that are really sent."""
    inner = innermost(strategy)
    if isinstance(inner, FedAvgM):
        inner.current_arrays = arrays
