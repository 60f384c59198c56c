"""Who holds what: the split of a training set among clients.

Every split is disjoint and complete, gives each client at least ``min_size`` examples, and depends on the seed
and the labels alone. It is made as one owner an example and kept as one flat array with offsets, so that
100,000 clients cost two arrays and not 100,000.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhyper.errors import DataError, UserError, did_you_mean
from fedhyper.sim.rng import generator

Indices = npt.NDArray[np.int64]

KINDS = ("iid", "dirichlet", "shards", "natural")
MAX_CONCENTRATION = 1e6  # far beyond the point where a Dirichlet split is an even one
MIN_CONCENTRATION = 1e-3  # one client a class; below, the draws underflow


@dataclass(frozen=True, eq=False)
class Partition:
    """Client ``i`` holds ``indices[offsets[i]:offsets[i + 1]]``, in ascending order.

    ``class_counts[i, c]`` is how many examples of class ``c`` client ``i`` holds; None where labels say little
    (a natural split).
    """

    kind: str
    indices: Indices
    offsets: Indices
    class_counts: npt.NDArray[np.int64] | None = None

    @classmethod
    def from_owners(cls, kind: str, owners: Indices, clients: int, labels: Indices | None = None) -> Partition:
        """The partition in which ``owners[j]`` holds example ``j``."""
        offsets = np.zeros(clients + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=clients), out=offsets[1:])
        counts = None
        if labels is not None:
            classes = int(labels.max()) + 1
            counts = np.bincount(owners * classes + labels, minlength=clients * classes).reshape(clients, classes)
        return cls(kind, np.argsort(owners, kind="stable"), offsets, counts)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """How many examples each client holds."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Indices:
        """The client that holds each example."""
        owners = np.empty(len(self.indices), np.int64)
        owners[self.indices] = np.repeat(np.arange(self.clients), self.sizes)
        return owners

    @property
    def sha256(self) -> str:
        """SHA-256 of the offsets and the indices, each as little-endian 64-bit integers."""
        digest = hashlib.sha256(self.offsets.astype("<i8").tobytes())
        digest.update(self.indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def client(self, i: int) -> Indices:
        """The examples of client ``i``: a view, not a copy."""
        if not 0 <= i < self.clients:
            raise IndexError(f"client {i} of {self.clients}")
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def to_json(self) -> dict[str, Any]:
        """What ``partition.json`` holds. ``owners`` is the whole split: base64 of deflated 32-bit integers."""
        record: dict[str, Any] = {
            "kind": self.kind,
            "sha256": self.sha256,
            "clients": self.clients,
            "sizes": self.sizes.tolist(),
        }
        if self.class_counts is not None:
            record["class_counts"] = self.class_counts.tolist()
        record["owners"] = base64.b64encode(zlib.compress(self.owners.astype("<u4").tobytes())).decode()
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Partition:
        """The partition that ``to_json`` wrote, checked against its SHA-256."""
        try:
            total = sum(record["sizes"])
            inflate = zlib.decompressobj()
            raw = inflate.decompress(base64.b64decode(record["owners"], validate=True), 4 * total + 1)
            if len(raw) != 4 * total:
                raise ValueError("owners and sizes disagree")
            owners = np.frombuffer(raw, "<u4").astype(np.int64)
            partition = cls.from_owners(str(record["kind"]), owners, int(record["clients"]))
            counts = record.get("class_counts")
            whole = cls(
                partition.kind,
                partition.indices,
                partition.offsets,
                None if counts is None else np.array(counts, np.int64),
            )
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise DataError(f"partition.json is damaged ({error}); delete it and start the run again") from error
        if whole.sha256 != record["sha256"] or whole.sizes.tolist() != record["sizes"]:
            raise DataError("partition.json does not have its own SHA-256; delete it and start the run again")
        return whole


def make_partition(
    kind: str,
    labels: npt.ArrayLike,
    clients: int,
    *,
    seed: int,
    concentration: float = 0.5,
    shards_per_client: int = 2,
    min_size: int = 1,
    groups: Sequence[Indices] | None = None,
) -> Partition:
    """Split the examples with these ``labels`` (integers from 0) among ``clients``.

    - ``iid``: at random, sizes equal to within one.
    - ``dirichlet``: of each class, client ``i`` gets the share ``p_i``, ``p ~ Dirichlet(concentration)``.
    - ``shards``: sorted by label, cut into ``clients × shards_per_client`` pieces, dealt at random.
    - ``natural``: the data's own ``groups``, the smallest ones merged until ``clients`` are left.

    A client below ``min_size`` is filled up with random examples of the largest clients, so any request that
    can be met is met at once.
    """
    y = np.asarray(labels)
    _check(kind, y, clients, concentration, shards_per_client, min_size, groups)
    y = y.astype(np.int64)
    if kind == "natural":
        assert groups is not None
        return _natural(groups, len(y), clients, min_size)
    rng = generator(seed, "partition")
    if kind == "iid":
        owners = _even(rng.permutation(len(y)), clients)
    elif kind == "dirichlet":
        owners = _dirichlet(rng, y, clients, concentration)
    else:
        owners = _shards(rng, y, clients, shards_per_client)
    return Partition.from_owners(kind, _repair(rng, owners, clients, min_size), clients, y)


def _even(order: Indices, parts: int) -> Indices:
    """Cut ``order`` into ``parts`` runs, equal to within one: the run each element falls into."""
    owners = np.empty(len(order), np.int64)
    owners[order] = np.arange(len(order)) * parts // len(order)
    return owners


def _dirichlet(rng: np.random.Generator, labels: Indices, clients: int, concentration: float) -> Indices:
    # The shares are not capped at n / clients, as some published code does: a cap makes large clients even and
    # leaves the last ones what nobody else took.
    owners = np.empty(len(labels), np.int64)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    for members in np.split(by_class, np.cumsum(np.bincount(labels))[:-1]):
        share = rng.dirichlet(np.full(clients, concentration))
        cuts = np.rint(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owners


def _shards(rng: np.random.Generator, labels: Indices, clients: int, shards_per_client: int) -> Indices:
    shards = clients * shards_per_client
    shuffled = rng.permutation(len(labels))
    shard = _even(shuffled[np.argsort(labels[shuffled], kind="stable")], shards)
    return (rng.permutation(shards) // shards_per_client)[shard]


def _repair(rng: np.random.Generator, owners: Indices, clients: int, min_size: int) -> Indices:
    """Move random examples from the largest clients to those below ``min_size``, as few as possible."""
    sizes = np.bincount(owners, minlength=clients)
    lacking = np.maximum(min_size - sizes, 0)
    need = int(lacking.sum())
    if need == 0:
        return owners
    # The level to which the largest come down: the highest whose surplus covers the need. Below min_size it
    # cannot fall, for clients × min_size <= n.
    low, high = min_size, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.maximum(sizes - middle, 0).sum()) >= need:
            low = middle
        else:
            high = middle - 1
    surplus = np.maximum(sizes - low, 0)
    spare = int(surplus.sum()) - need  # fewer than there are donors; the last ones keep one more
    surplus[np.flatnonzero(surplus)[len(np.flatnonzero(surplus)) - spare :]] -= 1
    order = np.lexsort((rng.permutation(len(owners)), owners))
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = rng.permutation(order[rank < surplus[owners[order]]])
    repaired = owners.copy()
    repaired[moved] = np.repeat(np.arange(clients), lacking)
    return repaired


def _natural(groups: Sequence[Indices], n: int, clients: int, min_size: int) -> Partition:
    """Largest group first, each to the client that holds least: the large ones stay alone, the small ones merge."""
    owners = np.full(n, -1)
    held = [(0, i) for i in range(clients)]
    for group in sorted(groups, key=len, reverse=True):
        size, i = heapq.heappop(held)
        owners[group] = i
        heapq.heappush(held, (size + len(group), i))
    if sum(map(len, groups)) != n or (owners < 0).any():
        raise UserError("groups must hold every training example exactly once")
    smallest = min(held)[0]
    if smallest < min_size:
        raise UserError(f"clients = {clients} leaves a natural client {smallest} examples; lower clients or min_size")
    return Partition.from_owners("natural", owners, clients)


def _check(
    kind: str,
    labels: npt.NDArray[Any],
    clients: int,
    concentration: float,
    shards_per_client: int,
    min_size: int,
    groups: Sequence[Indices] | None,
) -> None:
    if kind not in KINDS:
        raise UserError(f"there is no partition kind {kind!r}; {did_you_mean(str(kind), KINDS)}")
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu" or int(labels.min()) < 0:
        raise UserError(f"labels must be a list of integers from 0, got {labels.dtype} of shape {labels.shape}")
    n = len(labels)
    for name, value, least in (
        ("clients", clients, 1),
        ("shards_per_client", shards_per_client, 1),
        ("min_size", min_size, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise UserError(f"{name} = {value!r} must be a whole number, at least {least}")
    if clients * max(min_size, 1) > n:
        raise UserError(
            f"{clients:,} clients with at least {max(min_size, 1)} of {n:,} examples each is impossible; "
            f"use clients <= {n // max(min_size, 1)}" + (" or a lower min_size" if min_size > 1 else "")
        )
    if kind == "shards" and clients * shards_per_client > n:
        raise UserError(
            f"shards_per_client = {shards_per_client} for {clients:,} clients needs "
            f"{clients * shards_per_client:,} examples, there are {n:,}; lower either"
        )
    if kind == "dirichlet" and not (
        math.isfinite(concentration) and MIN_CONCENTRATION <= concentration <= MAX_CONCENTRATION
    ):
        raise UserError(
            f"concentration = {concentration} must lie between {MIN_CONCENTRATION:g} and {MAX_CONCENTRATION:g}; "
            "for an even split use kind = iid"
        )
    if kind == "natural" and groups is None:
        raise UserError("this task has no natural clients; use kind = dirichlet, shards or iid")
    if kind == "natural" and groups is not None and clients > len(groups):
        raise UserError(f"clients = {clients} is more than the {len(groups)} natural clients; use that or fewer")
