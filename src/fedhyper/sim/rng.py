"""Every random number of a run, derived from its seed and a name: no state to save, nothing a worker can disturb."""

from __future__ import annotations

import hashlib

import numpy as np

Key = int | str


def derive(seed: int, *keys: Key) -> int:
    """128 bits that depend on ``seed`` and ``keys`` and nothing else: blake2b of their written form."""
    written = "/".join([str(seed), *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.blake2b(written.encode(), digest_size=16).digest(), "little")


def generator(seed: int, *keys: Key) -> np.random.Generator:
    """A generator of its own for one purpose, for example ``generator(seed, "batches", t, client)``."""
    return np.random.Generator(np.random.Philox(key=derive(seed, *keys)))
