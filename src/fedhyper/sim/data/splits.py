"""The built-in ways to split a training set: who owns each example.

A split is a function of a ``Split`` (and of its own settings, by keyword) that returns one owner an example.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedhyper.errors import UserError

Indices = npt.NDArray[np.int64]

MAX_CONCENTRATION = 1e6  # far beyond the point where a Dirichlet split is an even one
MIN_CONCENTRATION = 1e-3  # one client a class; below, the draws underflow


class Split(NamedTuple):
    """What there is to split: a generator seeded by the config, a label an example, and among how many clients.

    ``groups`` are the data's own clients, where there are any; ``min_size`` is the fewest examples a client may hold,
    which is seen to afterwards.
    """

    rng: np.random.Generator
    labels: Indices
    clients: int
    min_size: int = 1
    groups: Sequence[Indices] | None = None


def iid(given: Split) -> Indices:
    """At random, sizes equal to within one."""
    return _even(given.rng.permutation(len(given.labels)), given.clients)


def _even(order: Indices, parts: int) -> Indices:
    """Cut ``order`` into ``parts`` runs, equal to within one: the run each element falls into."""
    owners = np.empty(len(order), np.int64)
    owners[order] = np.arange(len(order)) * parts // len(order)
    return owners


def dirichlet(given: Split, *, concentration: float = 0.5) -> Indices:
    """Of each class, client ``i`` gets the share ``p_i``, ``p ~ Dirichlet(concentration)``: small is skewed."""
    if not (math.isfinite(concentration) and MIN_CONCENTRATION <= concentration <= MAX_CONCENTRATION):
        raise UserError(
            f"concentration = {concentration} must lie between {MIN_CONCENTRATION:g} and {MAX_CONCENTRATION:g}; "
            "for an even split use kind = iid"
        )
    rng, labels = given.rng, given.labels
    # The shares are not capped at n / clients, as some published code does: a cap makes large clients even and
    # leaves the last ones what nobody else took.
    owners = np.empty(len(labels), np.int64)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    for members in np.split(by_class, np.cumsum(np.bincount(labels))[:-1]):
        share = rng.dirichlet(np.full(given.clients, concentration))
        cuts = np.rint(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owners


def shards(given: Split, *, shards_per_client: int = 2) -> Indices:
    """Sorted by label, cut into ``clients × shards_per_client`` pieces, dealt at random."""
    rng, labels, clients = given.rng, given.labels, given.clients
    whole = isinstance(shards_per_client, int | np.integer) and not isinstance(shards_per_client, bool)
    if not whole or shards_per_client < 1:
        raise UserError(f"shards_per_client = {shards_per_client!r} must be a whole number, at least 1")
    if clients * shards_per_client > len(labels):
        raise UserError(
            f"shards_per_client = {shards_per_client} for {clients:,} clients needs "
            f"{clients * shards_per_client:,} examples, there are {len(labels):,}; lower either"
        )
    pieces = clients * shards_per_client
    shuffled = rng.permutation(len(labels))
    shard = _even(shuffled[np.argsort(labels[shuffled], kind="stable")], pieces)
    return (rng.permutation(pieces) // shards_per_client)[shard]


def natural(given: Split) -> Indices:
    """The data's own groups, the smallest ones merged until ``clients`` are left.

    Largest group first, each to the client that holds least: the large ones stay alone, the small ones merge.
    """
    groups, n, clients = given.groups, len(given.labels), given.clients
    if groups is None:
        raise UserError("this task has no natural clients; use kind = dirichlet, shards or iid")
    if clients > len(groups):
        raise UserError(f"clients = {clients} is more than the {len(groups)} natural clients; use that or fewer")
    owners = np.full(n, -1)
    held = [(0, i) for i in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        size, i = heapq.heappop(held)
        owners[group] = i
        heapq.heappush(held, (size + len(group), i))
    if sum(map(len, groups)) != n or (owners < 0).any():
        raise UserError("groups must hold every training example exactly once")
    smallest = min(held)[0]
    if smallest < given.min_size:
        raise UserError(f"clients = {clients} leaves a natural client {smallest} examples; lower clients or min_size")
    return owners
