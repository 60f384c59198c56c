"""fedhyper: learning rates for federated learning, set while training runs, by hypergradient descent.

This package's top level needs nothing but the standard library. ``fedhyper.client`` needs torch, ``fedhyper.sim`` and
the ``fedhyper`` command the ``[sim]`` extra, ``fedhyper.flower`` the ``[flower]`` extra.
"""

from fedhyper.automatic.auto import Auto, Grafted, auto
from fedhyper.baselines import Constant, Decay, FedExP
from fedhyper.guard import LossGuard
from fedhyper.optimizers import Adagrad, Adam, Average, Momentum, Yogi
from fedhyper.plan import Pair, PlanState
from fedhyper.schedulers import FedHyperCL, FedHyperG, FedHyperSL, LRState, Scheduler
from fedhyper.theory import theorem1

__version__ = "0.1.0"

__all__ = [
    "Adagrad",
    "Adam",
    "Auto",
    "Average",
    "Constant",
    "Decay",
    "FedExP",
    "FedHyperCL",
    "FedHyperG",
    "FedHyperSL",
    "Grafted",
    "LRState",
    "LossGuard",
    "Momentum",
    "Pair",
    "PlanState",
    "Scheduler",
    "Yogi",
    "auto",
    "theorem1",
]
