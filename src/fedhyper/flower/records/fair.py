"""What a reply may weigh in the mean: no client, whatever it sends, moves a run by more than its share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedhyper.flower.records.layout import Arrays
from fedhyper.flower.records.replies import NodeReply
from fedhyper.flower.records.sums import MOST, moved, products
from fedhyper.guard import bounded, fair_weights, judging_weights, not_against

_ROUNDED = 1.01  # a client that clips to a length is beyond it by what its numbers are rounded by


def weigh(
    replies: Sequence[NodeReply], norm_cap: float, before: Arrays, trained: Sequence[str]
) -> tuple[list[NodeReply], Arrays | None]:
    """The replies, each with the weight ``fedhyper.guard`` leaves it, and Δ_t, if it was made on the way and holds.

    ``norm_cap`` 0: they weigh what they claim. A reply has one weight for all its arrays. So one whose statistics
    (BatchNorm's) lie far off, which no training step of the others would notice, loses as much as for its update.
    """
    if not norm_cap or not replies:
        return list(replies), None
    few = len(replies) <= MOST
    replies = _together(replies, before, trained) if few else replies
    claimed, squares = [reply.weight for reply in replies], [reply.sq_norm for reply in replies]
    pulled = fair_weights(claimed, [math.sqrt(square) for square in squares], norm_cap)
    drifted = fair_weights(claimed, [math.sqrt(reply.sq_drift) for reply in replies], norm_cap)
    # the claim first: as it came, an int, where it may stand
    fair = [min(three) for three in zip(claimed, pulled, drifted, strict=True)]
    judging, delta = judging_weights(fair, [math.sqrt(square) for square in squares]), None
    if few:
        along = [sum(w * p for w, p in zip(judging, reply.beside.values(), strict=True)) for reply in replies]
    else:
        delta, along = moved([reply.arrays for reply in replies], judging, trained, before)
    left = not_against(fair, squares, along)
    kept = delta if left == judging else None
    return [reply._replace(weight=w) for reply, w in zip(replies, left, strict=True)], kept


def _together(replies: Sequence[NodeReply], before: Arrays, trained: Sequence[str]) -> Sequence[NodeReply]:
    """The replies as if these, in this order, had been measured together, to the bit; mostly they have been."""
    nodes = [reply.node for reply in replies]
    if all(list(reply.beside) == nodes for reply in replies):
        return replies
    table = products(before, [reply.arrays for reply in replies], trained)
    beside = [dict(zip(nodes, row, strict=True)) for row in table]
    return [reply._replace(sq_norm=row[reply.node], beside=row) for reply, row in zip(replies, beside, strict=True)]


def alike(replies: Sequence[NodeReply], longest: float) -> list[NodeReply]:
    """The replies with the weight 1 each, less for one that moved further than ``longest``.

    Noise is made for a mean in which all weigh alike and none moved further than it was clipped to. Medians of the
    round must not decide there: they would let one client's data change what the others weigh.
    """
    return [reply._replace(weight=_share(math.sqrt(reply.sq_norm), longest)) for reply in replies]


def _share(length: float, longest: float) -> float:
    return longest / length if length > _ROUNDED * longest else 1.0


def mean_sq_norm(replies: Sequence[NodeReply], norm_cap: float) -> float:
    """Σ p_m |Δ_m|², each of them at most norm_cap² medians (FedExP reads it)."""
    squares = [reply.sq_norm for reply in replies]
    counted = bounded(squares, norm_cap**2) if norm_cap else squares
    total = sum(reply.weight for reply in replies)
    return sum(reply.weight / total * square for reply, square in zip(replies, counted, strict=True))
