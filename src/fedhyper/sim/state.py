"""What a run must remember from one round to the next."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedhyper.optimizers import Moments
from fedhyper.plan import PlanState


class ServerState(NamedTuple):
    """Everything that changes. A round makes a new one; nothing is changed in place."""

    round: int  # rounds done
    weights: Tensor  # w_t: trainable parameters, flat, in the standard layout
    buffers: Tensor  # BatchNorm statistics: averaged, never stepped
    counters: Tensor  # integer buffers: the largest of the clients'
    plan: PlanState
    moments: Moments
    delta: Tensor | float  # Δ_t-1, the last aggregate; 0 before there is one
    mean: Tensor  # what is evaluated and saved: w_t, or a mean of the last few
    mean_buffers: Tensor  # and its statistics
    good: Tensor  # the weights a rollback returns to
    good_buffers: Tensor  # and their statistics
    carried_lr: float  # mean of the clients' final rates (CL with carry); NaN: not in use
    idle_rounds: int  # consecutive rounds without a usable update
