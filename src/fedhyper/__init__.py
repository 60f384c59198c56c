"""fedhyper: learning rates for federated learning, set while training runs, by hypergradient descent.

This package's top level needs nothing but the standard library. ``fedhyper.client`` needs torch, ``fedhyper.sim`` and
the ``fedhyper`` command the ``[sim]`` extra, ``fedhyper.flower`` the ``[flower]`` extra.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhyper.automatic.auto import Auto, auto
    from fedhyper.averages import LastRounds, LastTwo, Model, Newest
    from fedhyper.baselines import Constant, Decay, FedExP
    from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
    from fedhyper.optimizers import Adagrad, Adam, Average, Momentum, Yogi
    from fedhyper.plan import Pair, PlanState, Seen, Shape
    from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL, LRState, Scheduler
    from fedhyper.server import Server
    from fedhyper.theory import theorem1

__version__ = "0.1.0"

__all__ = [
    "Adagrad",
    "Adam",
    "Auto",
    "Average",
    "Constant",
    "Decay",
    "Decision",
    "FedExP",
    "FedHyperCL",
    "FedHyperG",
    "FedHyperSL",
    "LRState",
    "LastRounds",
    "LastTwo",
    "LoopState",
    "Model",
    "Momentum",
    "Newest",
    "Pair",
    "PlanState",
    "RoundReport",
    "Scheduler",
    "Seen",
    "Server",
    "ServerLoop",
    "Shape",
    "Yogi",
    "auto",
    "log",
    "theorem1",
]

LISTENERS: list[Callable[[str, dict[str, Any]], Any]] = []  # of ``log``; the lab calls them


def log(function: Callable[[str, dict[str, Any]], Any]) -> None:
    """Have ``function(directory, record)`` called after every round of every simulated run of this process.

    For a file that ``fedhyper run --import FILE.py`` or ``fedhyper sweep --import FILE.py`` reads. In Flower it is the
    strategy's ``on_round``.

    function  takes the run's directory, as text, and the new line of its ``metrics.jsonl``, as a dict
    """
    LISTENERS.append(function)


# A name is imported when it is first used: the command line's help, and a program that needs one rule, wait for one.
_HOMES = {
    "fedhyper.automatic.auto": "Auto, auto",
    "fedhyper.averages": "LastRounds, LastTwo, Model, Newest",
    "fedhyper.baselines": "Constant, Decay, FedExP",
    "fedhyper.loop": "Decision, LoopState, RoundReport, ServerLoop",
    "fedhyper.optimizers": "Adagrad, Adam, Average, Momentum, Yogi",
    "fedhyper.plan": "Pair, PlanState, Seen, Shape",
    "fedhyper.schedulers": "FedHyperCL, FedHyperG, FedHyperSL, LRState, Scheduler",
    "fedhyper.server": "Server",
    "fedhyper.theory": "theorem1",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split(", ")}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedhyper' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
