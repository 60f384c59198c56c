"""Who holds what: the split of a training set among clients.

Every split is disjoint and complete, gives each client at least ``min_size`` examples, and depends on the seed
and the labels alone. It is made as one owner an example and kept as one flat array with offsets, so that
100,000 clients cost two arrays and not 100,000.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhyper.errors import DataError, UserError
from fedhyper.sim.data.splits import Split
from fedhyper.sim.keywords import checked_options, keyword_options
from fedhyper.sim.registry import PARTITIONS
from fedhyper.sim.rng import generator

Indices = npt.NDArray[np.int64]

SHARED = ("concentration", "shards_per_client")  # options that a config always has


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

    def asked(self) -> tuple[Indices, list[Indices]]:
        """The examples that somebody holds, in ascending order, and for each client which of these are its own."""
        held = np.sort(self.indices)
        return held, [np.searchsorted(held, self.client(i)) for i in range(self.clients)]

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
    min_size: int = 1,
    groups: Sequence[Indices] | None = None,
    **options: Any,
) -> Partition:
    """Split the examples with these ``labels`` (integers from 0) among ``clients``.

    - ``iid``: at random, sizes equal to within one.
    - ``dirichlet``: of each class, client ``i`` gets the share ``p_i``, ``p ~ Dirichlet(concentration)``.
    - ``shards``: sorted by label, cut into ``clients × shards_per_client`` pieces, dealt at random.
    - ``natural``: the data's own ``groups``, the smallest ones merged until ``clients`` are left.
    - or a kind of your own, by ``register_partition``.

    ``options`` are those of the kind; ``concentration`` and ``shards_per_client`` may be given to any, as a config
    does. A client below ``min_size`` is filled up with random examples of the largest clients, so any request that
    can be met is met at once.
    """
    entry, y = PARTITIONS.get(kind), np.asarray(labels)
    _check(y, clients, min_size)
    taken, own = keyword_options(entry.split), {k: v for k, v in options.items() if k not in SHARED}
    settings = {name: value for name, value in options.items() if name in taken}
    settings |= checked_options(f"partition kind {kind}", entry.split, own)
    y = y.astype(np.int64)
    rng = generator(seed, "partition")
    given = Split(rng, y, clients, min_size, groups)
    owners = np.asarray(entry.split(given, **settings))
    if owners.shape != y.shape or owners.dtype.kind not in "iu" or owners.min() < 0 or owners.max() >= clients:
        raise UserError(
            f"partition kind {kind}: its function must return one owner an example, {len(y):,} whole numbers "
            f"from 0 to {clients - 1}, got {owners.dtype} of shape {owners.shape}"
        )
    owners = _repair(rng, owners.astype(np.int64), clients, min_size)
    return Partition.from_owners(kind, owners, clients, y if entry.labelled else None)


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


def _check(labels: npt.NDArray[Any], clients: int, min_size: int) -> None:
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu" or int(labels.min()) < 0:
        raise UserError(f"labels must be a list of integers from 0, got {labels.dtype} of shape {labels.shape}")
    n = len(labels)
    for name, value, least in (("clients", clients, 1), ("min_size", min_size, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise UserError(f"{name} = {value!r} must be a whole number, at least {least}")
    if clients * max(min_size, 1) > n:
        raise UserError(
            f"{clients:,} clients with at least {max(min_size, 1)} of {n:,} examples each is impossible; "
            f"use clients <= {n // max(min_size, 1)}" + (" or a lower min_size" if min_size > 1 else "")
        )
