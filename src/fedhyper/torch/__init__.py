"""FedHyper as a ``torch.optim.Optimizer`` for the server: one class for every engine that has a slot for one."""

from __future__ import annotations

from fedhyper.errors import install

try:
    import torch  # noqa: F401
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(f"fedhyper.torch needs torch: {install('sim')}") from error

from fedhyper.torch.hyper_server import HyperServer

__all__ = ["HyperServer"]
