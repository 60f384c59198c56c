"""The workloads' models as people write them (ReLU, then pool), for peers that have torch and not fedhyper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MODELS = {
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    ),
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
    "digits": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
}


def make(name: str, weights: Tensor) -> nn.Module:
    """The model with these weights."""
    model = MODELS[name]() if name in MODELS else _ours(name)
    load(model, weights)
    return model


def _ours(name: str) -> nn.Module:
    """ResNet-18 and the LSTM have nothing to reorder: the model is fedhyper's own."""
    from fedhyper.sim.models import make_model

    shape, classes = ((80,), 80) if name == "lstm" else ((3, 32, 32), 10)
    return make_model(name, shape, classes, seed=0, tokens=name == "lstm")


@torch.no_grad()
def load(model: nn.Module, weights: Tensor) -> None:
    """Write a flat vector into the parameters."""
    nn.utils.vector_to_parameters(weights, model.parameters())


def flat(model: nn.Module) -> Tensor:
    """The parameters as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()
