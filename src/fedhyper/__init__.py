"""fedhyper: learning rates for federated learning, set while training runs, by hypergradient descent.

This package's top level needs nothing but the standard library. ``fedhyper.client`` needs torch, ``fedhyper.sim`` and
the ``fedhyper`` command the ``[sim]`` extra, ``fedhyper.flower`` the ``[flower]`` extra.
"""

from fedhyper.automatic.auto import Auto, auto
from fedhyper.averages import LastRounds, LastTwo, Model, Newest
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.loop import Decision, LoopState, RoundReport, ServerLoop
from fedhyper.optimizers import Adagrad, Adam, Average, Momentum, Yogi
from fedhyper.plan import Pair, PlanState, Seen
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
    "Yogi",
    "auto",
    "theorem1",
]
