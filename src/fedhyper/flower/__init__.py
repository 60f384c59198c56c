"""FedHyper for Flower: ``FedHyper`` wraps any strategy; ``client_optimizer`` follows it on the clients.

The server needs NumPy alone; only ``client_optimizer`` imports torch, when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import flwr  # noqa: F401
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError("fedhyper.flower needs Flower: pip install 'fedhyper[flower]'") from error

from fedhyper.flower.strategy import FedHyper

if TYPE_CHECKING:
    from fedhyper.flower.client import client_optimizer, identify, local_lr, train_reply

__all__ = ["FedHyper", "client_optimizer", "identify", "local_lr", "train_reply"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fedhyper.flower import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
