"""Which replies may be believed. A bad one is refused by name and the run goes on; Flower's own checks end it.

Everything a client says is untrusted: keys, shapes, types, numbers, its weight, its round, how often it answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, cast

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from fedhyper.flower.records.layout import Arrays, Layout, OpenArray, finite, pack, views
from fedhyper.flower.records.sums import MOST, products, sq_distances
from fedhyper.flower.wire import PREFIX, ROUND, SERVER_ROUND, without_ours

_MOST_EXAMPLES = 2**53  # beyond it a float no longer counts one by one, and nobody has them
_ECHOES = (ROUND, SERVER_ROUND)
_TOO_WIDE = "do not fit into float"  # the layout's words
_ENDLESS, _TOO_LONG = "non-finite numbers in array", "an update too long to be measured"

Metric = int | float | list[int] | list[float]
Signature = tuple[tuple[str, int], ...]


class NodeReply(NamedTuple):
    """One reply that passed. ``metrics`` has ours too.

    weight    what it claims, then what it may weigh
    key       the name of the model's record in it
    arrays    the model's, in its own types
    sq_norm   |Δ_m|², of the trained arrays; NaN: masked
    sq_drift  the same of the other floats, such as BatchNorm's statistics
    beside    <Δ_m, Δ_n> by node n, of the replies that were measured together with it, in their order; empty: of none
    """

    message: Message
    node: int
    weight: float
    key: str
    arrays: Arrays
    metrics: dict[str, Metric]
    sq_norm: float = math.nan
    sq_drift: float = 0.0
    beside: Mapping[int, float] = {}  # never written to


class Refusal(NamedTuple):
    """Who was refused, and why."""

    node: int
    reason: str

    @property
    def diverged(self) -> bool:
        """Whether it is for what a rate that is too high makes of an honest client's numbers."""
        return self.reason.startswith((_ENDLESS, _TOO_LONG)) or _TOO_WIDE in self.reason


@dataclass(frozen=True)
class Expected:
    """What a reply to this round's messages must look like.

    free    replies go to an app's own code, not to Flower's: other records may be in them, the weight is its business
    masked  nobody may look at the arrays; that hides their numbers, and their shapes only where the app's own code puts
            them together
    """

    server_round: int
    layout: Layout
    asked: Collection[int]
    weight_key: str
    free: bool = False
    masked: bool = False
    rungs: Mapping[int, int] = field(default_factory=dict)  # node → the rung of the rate it tries out; empty: none does
    climbs: bool = False  # clients that can were asked to try several
    tried: tuple[tuple[int, float], ...] = ()  # (rung, gain) of earlier rounds, at the weights that wait meanwhile
    first: float = math.nan  # the loss at these weights, by earlier rounds
    enough: bool = False  # trying rates out is to end with this round
    hurried: bool = False  # the run is so short that the first step has to be as long as the best rate makes it
    own_lr: float | None = (
        None  # the app's own rate, where the run is too short to find a better one late; None: it is not
    )


def sift(
    replies: Iterable[Message], expected: Expected, before: Arrays, *, directions: bool = False
) -> tuple[list[NodeReply], list[Refusal]]:
    """The replies to believe, each with how far it moved from ``before``, and those refused.

    ``directions``: whether somebody will ask which way each moved beside the others; a few of them are told at once.
    """
    kept, refused = _readable(replies, expected, arrays=True)
    if not expected.masked:
        kept, endless = _measured(kept, before, expected.layout, directions=directions and len(kept) <= MOST)
        refused += endless
    # what is masked goes to Flower as it came, with our metrics in it
    agreeing, odd = _agreeing(kept, ours=expected.masked and not expected.free)
    return agreeing, refused + odd


def sift_evaluation(replies: Iterable[Message], expected: Expected) -> tuple[list[Message], list[Refusal]]:
    """The same for what clients found when they evaluated: one bad reply would end the run."""
    kept, refused = _readable(replies, expected, arrays=False)
    agreeing, odd = _agreeing(kept)
    return [reply.message for reply in agreeing], refused + odd


def _readable(replies: Iterable[Message], expected: Expected, *, arrays: bool) -> tuple[list[NodeReply], list[Refusal]]:
    kept: dict[int, NodeReply] = {}
    refused: list[Refusal] = []
    for message in replies:
        node = message.metadata.src_node_id
        try:
            if node in kept:
                raise ValueError("a second reply to one message")
            kept[node] = _read(message, expected, arrays=arrays)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            refused.append(Refusal(node, one_line(str(error))))
    return list(kept.values()), refused


def _measured(
    replies: Sequence[NodeReply], before: Arrays, layout: Layout, *, directions: bool
) -> tuple[list[NodeReply], list[Refusal]]:
    """How far each moved, which also proves that every number is finite: one look for both."""
    arrays, nodes = [reply.arrays for reply in replies], [reply.node for reply in replies]
    drifts, rows = sq_distances(before, arrays, layout.statistics), repeat({})  # type: list[float], Iterable[dict[int, float]]
    if directions:
        table = products(before, arrays, layout.trained)
        lengths, rows = [row[i] for i, row in enumerate(table)], [dict(zip(nodes, row, strict=True)) for row in table]
    else:
        lengths = sq_distances(before, arrays, layout.trained)
    kept, refused = [], []
    for reply, sq_norm, sq_drift, beside in zip(replies, lengths, drifts, rows, strict=False):
        if math.isfinite(sq_norm + sq_drift):
            kept.append(reply._replace(sq_norm=sq_norm, sq_drift=sq_drift, beside=beside))
            continue
        bad = next((name for name, array in reply.arrays.items() if not finite(array)), None)
        endless = _TOO_LONG if bad is None else f"{_ENDLESS} {bad!r}"
        refused.append(Refusal(reply.node, endless))
    return kept, refused


def _agreeing(replies: Sequence[NodeReply], *, ours: bool = False) -> tuple[list[NodeReply], list[Refusal]]:
    signatures = [_signature(reply, ours=ours) for reply in replies]
    signature = _majority(signatures)
    agrees = [(reply, one == signature) for reply, one in zip(replies, signatures, strict=True)]
    why = "its metrics are not those the other clients send"
    return [reply for reply, yes in agrees if yes], [Refusal(reply.node, why) for reply, yes in agrees if not yes]


def _read(message: Message, expected: Expected, *, arrays: bool) -> NodeReply:
    """The reply in parts, or ValueError with the reason not to believe it."""
    node = message.metadata.src_node_id
    if node not in expected.asked:
        raise ValueError("nobody asked this node")
    if not message.has_content():
        raise ValueError("neither content nor error")
    metrics = _metrics(message.content, free=expected.free)
    weight = _weight(metrics, expected.weight_key, free=expected.free)
    for key in _ECHOES:
        if metrics.get(key, expected.server_round) != expected.server_round:
            raise ValueError(f"it answers round {metrics[key]}, this is round {expected.server_round}")
    if not arrays or (expected.masked and expected.free):
        return NodeReply(message, node, weight, "", {}, metrics)
    key, record = _model(message.content, expected.layout, free=expected.free)
    if expected.masked:
        if odd := [name for name in message.content if name.startswith(PREFIX)]:
            raise ValueError(f"a record {odd[0]!r:.80} beside the model")
        expected.layout.check(views(record))
        return NodeReply(message, node, weight, "", {}, metrics)
    return NodeReply(message, node, weight, key, expected.layout.fit(views(record)), metrics)


def _model(content: RecordDict, layout: Layout, *, free: bool) -> tuple[str, ArrayRecord]:
    """The model's record and its name; where there may be others, it is the one with the model's names."""
    records = without_ours(content.array_records)
    if len(records) == 1:
        return next(iter(records.items()))
    found = [(key, record) for key, record in records.items() if record.keys() == layout.shapes.keys()]
    if not free or not found:
        raise ValueError(f"{len(records)} array records, expected 1")
    return found[0]


def _metrics(content: RecordDict, *, free: bool) -> dict[str, Metric]:
    """All of them; one that is not finite is the app's own business (an AUC of NaN, a budget of inf)."""
    plain = without_ours(content.metric_records)
    if len(plain) != 1 and not free:
        raise ValueError(f"{len(plain)} metric records, expected 1")
    return {key: value for record in plain.values() for key, value in record.items()}


def _weight(metrics: dict[str, Metric], key: str, *, free: bool) -> float:
    if key not in metrics:
        if free:
            return 1.0
        raise ValueError(f"metric {key!r}, its weight, is missing")
    weight = metrics[key]
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ValueError(f"weight {key!r} is a {type(weight).__name__}, not a number")
    if not 0 < weight <= _MOST_EXAMPLES:
        raise ValueError(f"weight {key!r} = {weight} is not in (0, 2**53]")
    return weight


def _signature(reply: NodeReply, *, ours: bool) -> Signature:
    """Names of the metrics an inner strategy averages, their lengths (-1: a number), and the other records' (-2)."""
    shown, content = reply.metrics if ours else without_ours(reply.metrics), reply.message.content
    others = [*without_ours(content.array_records), *without_ours(content.metric_records)]
    named = [(key, -2) for key in others if len(others) > 2]
    return tuple(sorted([*named, *((key, len(v) if isinstance(v, list) else -1) for key, v in shown.items())]))


def _majority(signatures: list[Signature]) -> Signature | None:
    """What most clients send; between equals, the smaller, whatever the order of arrival."""
    counts = Counter(signatures)
    return min(counts, key=lambda signature: (-counts[signature], signature), default=None)


def strip(reply: NodeReply, names: Iterable[str], weight_key: str, *, read_only: bool) -> Message:
    """The message in the one form that strategies expect: only the app's own metrics, the weight that the reply may
    have, and the model's arrays of these names in their order (two strategies of Flower pair by position).

    read_only  whether whoever gets it writes to no array, and may be shown the bytes that came
    """
    content = RecordDict()
    for key, record in without_ours(reply.message.content).items():
        if key == reply.key:
            came = cast(ArrayRecord, record)
            arrays = {name: _as_it_came(came, name, reply.arrays) for name in names}
            content[key] = ArrayRecord({name: OpenArray.of(a) for name, a in arrays.items()} if read_only else arrays)
        elif isinstance(record, MetricRecord):
            weight = {weight_key: reply.weight} if weight_key in record else {}
            content[key] = MetricRecord(without_ours(record) | weight)
        else:
            content[key] = record
    reply.message.content = content
    return reply.message


def _as_it_came(record: ArrayRecord, name: str, arrays: Arrays) -> Array:
    """The reply's own bytes, which a view has for its base, or the array that was made to fit the model's type."""
    return record[name] if arrays[name].base is not None else pack(arrays[name])


def one_line(text: str, limit: int = 200) -> str:
    """What a client wrote, fit for a log: no line breaks, no escape sequences, not endless."""
    return "".join(c if c.isprintable() else "?" for c in text)[:limit]
