"""FedHyper for NVFlare: ``FedHyper`` is a controller for both rates, ``FedHyperRecipe`` a job with it; on the clients
``local_lr`` is the rate to train with and ``reply`` what to send back.

A client imports neither the controller nor the recipe.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedhyper.errors import install

try:
    import nvflare  # noqa: F401
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(f"fedhyper.nvflare needs NVFlare: {install('nvflare')}") from error

if TYPE_CHECKING:
    from fedhyper.nvflare.client import local_lr, reply
    from fedhyper.nvflare.controller import FedHyper
    from fedhyper.nvflare.recipe import FedHyperRecipe

__all__ = ["FedHyper", "FedHyperRecipe", "local_lr", "reply"]

_HOMES = {"FedHyper": "controller", "FedHyperRecipe": "recipe", "local_lr": "client", "reply": "client"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedhyper.nvflare.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
