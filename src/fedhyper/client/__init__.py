"""Optimizers for a client's local training, in place of ``torch.optim.SGD``: see ``optimizers``."""

from fedhyper.client.optimizers import DeltaSGD, HyperSGD, PolyakSGD, delta_sgd_rate, hyper_rate, polyak_rate

__all__ = ["DeltaSGD", "HyperSGD", "PolyakSGD", "delta_sgd_rate", "hyper_rate", "polyak_rate"]
