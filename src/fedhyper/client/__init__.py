"""Optimizers for a client's local training, in place of ``torch.optim.SGD``: they set their own rate.

    HyperSGD    FedHyper-CL   β_k = clip(β_k-1 + <g_k, g_k-1> + <g_k, Δ_t-1> / K)
    DeltaSGD    Δ-SGD         η_k = min(γ |x_k − x_k-1| / (2 |g_k − g_k-1|), √(1 + δ θ_k-1) η_k-1),  θ_k = η_k / η_k-1
    PolyakSGD   FedSPS        η_k = min((F(x_k) − F*) / (c |g_k|²), lr)

``param_groups[i]["lr"]`` is the rate of the last step. A rate is computed before any parameter moves, and is never NaN:
what cannot be used leaves it where it was. The step itself is torch's: a gradient that is not finite spoils the
weights, as with ``torch.optim.SGD``, and the server sees that and drops the update. See docs/client.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedhyper.errors import install

if TYPE_CHECKING:
    from fedhyper.client.delta_sgd import DeltaSGD, delta_sgd_rate
    from fedhyper.client.hyper_sgd import HyperSGD, hyper_rate
    from fedhyper.client.polyak_sgd import PolyakSGD, polyak_rate

__all__ = ["DeltaSGD", "HyperSGD", "PolyakSGD", "delta_sgd_rate", "hyper_rate", "polyak_rate"]

# Imported when they are asked for: a config is checked against ``constants`` in this package, without torch.
_HOMES = {
    "DeltaSGD": "delta_sgd",
    "delta_sgd_rate": "delta_sgd",
    "HyperSGD": "hyper_sgd",
    "hyper_rate": "hyper_sgd",
    "PolyakSGD": "polyak_sgd",
    "polyak_rate": "polyak_sgd",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(f"fedhyper.client.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            cure = f"fedhyper.client.{name} needs torch, which is not installed; {install('sim')}"
            raise ModuleNotFoundError(cure, name="torch") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
