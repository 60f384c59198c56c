"""Strategies inside strategies: whatever has a ``.strategy`` is looked through, and Flower's noise is kept right.

Flower's differential privacy strategies clip what comes, hand it to the one they wrap, and add noise to what that
gives back. So the order is FedHyper(DP(FedAvg())): all that is scheduled, remembered and averaged here has the noise in
it already. In the other order a step's momentum would let out each update again and again under the noise of one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fedhyper.errors import UserError
from fedhyper.flower.wire import EXAMPLES

_PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_TRUSTING = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyClientSideFixedClipping)
_HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
_OWN = "fedhyper_own"  # on a hook that stands in for a strategy's own: that one


def chain(strategy: Strategy) -> list[Strategy]:
    """The strategy, the one it wraps, and so on."""
    found = [strategy]
    while isinstance(inner := vars(found[-1]).get("strategy"), Strategy) and inner not in found:
        found.append(inner)
    return found


def innermost(strategy: Strategy) -> Strategy:
    """The one that wraps no other: it samples, and knows what replies look like."""
    return chain(strategy)[-1]


def weight_key(strategy: Strategy) -> str:
    """The metric by which replies are weighed."""
    return str(getattr(innermost(strategy), "weighted_by_key", EXAMPLES))


def of_the_apps_own(strategy: Strategy, hook: str) -> bool:
    """Whether an app's own code stands in for Flower's: it may want other records than Flower does, or no weights."""
    functions = [getattr(type(one), hook, None) for one in chain(strategy)]
    return not all(getattr(function, "__module__", "").startswith("flwr.") for function in functions)


def private(strategy: Strategy) -> list[Any]:
    """Flower's differential privacy strategies among them."""
    return [one for one in chain(strategy) if isinstance(one, _PRIVATE)]


def clipped_to(strategy: Strategy) -> float:
    """The length that clients themselves have to clip their updates to, by what a strategy among them says."""
    return min((one.clipping_norm for one in private(strategy) if isinstance(one, _TRUSTING)), default=math.inf)


@contextmanager
def noise_for(strategy: Strategy, replies: int) -> Iterator[None]:
    """Noise for the mean of this many replies. Flower's is for as many as were asked, and too little where fewer are in
    the mean: one of them then moves it further."""
    wrappers = private(strategy)
    usual = [wrapper.num_sampled_clients for wrapper in wrappers]
    for wrapper in wrappers:
        wrapper.num_sampled_clients = replies
    try:
        yield
    finally:
        for wrapper, number in zip(wrappers, usual, strict=True):
            wrapper.num_sampled_clients = number


def refuse_noise_outside() -> None:
    """UserError when the hook that calls this is called by a differential privacy strategy around ours."""
    # its constructor tells the one it wraps nothing, so the caller is the only one to ask
    if isinstance(sys._getframe(2).f_locals.get("self"), _PRIVATE):
        raise UserError(
            "differential privacy around FedHyper adds too little noise, because a step's momentum lets out each update"
            " more than once; put FedHyper outside: FedHyper(DifferentialPrivacy...(FedAvg(), ...))"
        )


def own(strategy: Strategy, hook: str) -> Callable[..., Any]:
    """A strategy's own hook, also while ours stands in for it."""
    found = getattr(strategy, hook)
    return getattr(found, _OWN, found)  # type: ignore[no-any-return]


@contextmanager
def driven_by(strategy: Strategy, host: Strategy) -> Iterator[None]:
    """Let ``strategy.start`` run the rounds, with the host's hooks in the place of its own.

    For a strategy with a ``start`` of its own, which logs to W&B, or saves the best model: all of that is done as ever,
    by the very object, and ``super().start()`` in it works.
    """
    for hook in _HOOKS:
        stand_in = partial(getattr(host, hook))  # a bound method has no place for an attribute
        setattr(stand_in, _OWN, getattr(strategy, hook))
        setattr(strategy, hook, stand_in)
    try:
        yield
    finally:
        for hook in _HOOKS:
            delattr(strategy, hook)
