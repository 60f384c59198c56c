"""Imports every rule of this folder, which registers them."""

from fedhyper.sim.local import adam, delta, hyper, polyak, released, sgd

__all__ = ["adam", "delta", "hyper", "polyak", "released", "sgd"]
