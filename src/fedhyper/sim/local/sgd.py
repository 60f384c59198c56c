"""Plain SGD at the rate the server sent."""

from __future__ import annotations

import torch
from torch import nn

from fedhyper.sim.local.step import LocalStep, Start
from fedhyper.sim.registry import register_local


def slow_sgd(parameters: list[nn.Parameter], start: Start) -> torch.optim.Optimizer:
    """``torch.optim.SGD``."""
    return torch.optim.SGD(parameters, lr=start.lr)


register_local("sgd", fast=LocalStep, slow=slow_sgd)
