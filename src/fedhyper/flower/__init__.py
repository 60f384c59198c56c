"""FedHyper for Flower: ``FedHyper`` wraps any strategy; ``client_optimizer`` or ``mod`` follow it on the clients.

The server needs NumPy alone; what clients use is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedhyper.errors import install

try:
    import flwr  # noqa: F401
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(f"fedhyper.flower needs Flower: {install('flower')}") from error

from fedhyper.flower.strategy import FedHyper

if TYPE_CHECKING:
    from fedhyper.flower.client.optimizer import client_optimizer, local_lr
    from fedhyper.flower.client.reply import identify, train_reply
    from fedhyper.flower.client.torch_mod import climbing_mod, mod

__all__ = ["FedHyper", "client_optimizer", "climbing_mod", "identify", "local_lr", "mod", "train_reply"]

_HOMES = {
    "client_optimizer": "optimizer",
    "local_lr": "optimizer",
    "identify": "reply",
    "train_reply": "reply",
    "climbing_mod": "torch_mod",
    "mod": "torch_mod",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fedhyper.flower.client.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
