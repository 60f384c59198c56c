"""Which replies may be believed. A bad one is refused by name and the run goes on; Flower's own checks end it.

Everything a client says is untrusted: keys, shapes, types, numbers, its weight, its round, how often it answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, cast

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedhyper.automatic.ladder import Tries
from fedhyper.flower.layout import Arrays, Layout, finite, views
from fedhyper.flower.wire import ROUND, SERVER_ROUND, without_ours

_MOST_EXAMPLES = 2**53  # beyond it a float no longer counts one by one, and nobody has them
_ECHOES = (ROUND, SERVER_ROUND)

Metric = int | float | list[int] | list[float]


class NodeReply(NamedTuple):
    """One reply that passed. ``metrics`` has ours too; the message's content no longer has."""

    message: Message
    node: int
    weight: float
    arrays: Arrays
    metrics: dict[str, Metric]


class Refusal(NamedTuple):
    """Who was refused, and why."""

    node: int
    reason: str


@dataclass(frozen=True)
class Expected:
    """What a reply to this round's messages must look like. ``layout`` None: masked arrays, which nobody may check."""

    server_round: int
    layout: Layout | None
    asked: Collection[int]
    weight_key: str
    weight_cap: float | None = None
    finite: bool = True  # look at every number
    rungs: Mapping[int, int] = field(default_factory=dict)  # node → the rung of the rate it tries out; empty: none does
    tries: Tries = ()  # what was tried in earlier rounds


def sift(replies: Iterable[Message], expected: Expected) -> tuple[list[NodeReply], list[Refusal]]:
    """The replies to believe and those refused. Contents of the former are put into the one form strategies expect."""
    kept: dict[int, NodeReply] = {}
    refused: list[Refusal] = []
    for message in replies:
        node = message.metadata.src_node_id
        try:
            if node in kept:
                raise ValueError("a second reply to one message")
            kept[node] = _read(message, expected)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            refused.append(Refusal(node, one_line(str(error))))
    signature = _majority([_signature(reply) for reply in kept.values()])
    agreeing = []
    for reply in kept.values():
        if _signature(reply) == signature:
            agreeing.append(reply)
        else:
            refused.append(Refusal(reply.node, "its metrics are not those the other clients send"))
    if expected.weight_cap is not None and agreeing:
        limit = expected.weight_cap * median(reply.weight for reply in agreeing)
        agreeing = [reply._replace(weight=min(reply.weight, limit)) for reply in agreeing]
    if expected.layout is not None:
        for reply in agreeing:
            _strip(reply, expected.layout, expected.weight_key)
    return agreeing, refused


def _read(message: Message, expected: Expected) -> NodeReply:
    """The reply in parts, or ValueError with the reason not to believe it."""
    node = message.metadata.src_node_id
    if node not in expected.asked:
        raise ValueError("nobody asked this node")
    if not message.has_content():
        raise ValueError("neither content nor error")
    metrics = _metrics(message.content)
    weight = _weight(metrics, expected.weight_key)
    for key in _ECHOES:
        if metrics.get(key, expected.server_round) != expected.server_round:
            raise ValueError(f"it answers round {metrics[key]}, this is round {expected.server_round}")
    if expected.layout is None:
        return NodeReply(message, node, weight, {}, metrics)
    array_records = without_ours(message.content.array_records)
    if len(array_records) != 1:
        raise ValueError(f"{len(array_records)} array records, expected 1")
    arrays = views(next(iter(array_records.values())))
    if wrong := expected.layout.mismatch(arrays):
        raise ValueError(wrong)
    for name, array in arrays.items():
        if expected.finite and not finite(array):
            raise ValueError(f"non-finite numbers in array {name!r}")
    return NodeReply(message, node, weight, arrays, metrics)


def _metrics(content: RecordDict) -> dict[str, Metric]:
    plain = list(without_ours(content.metric_records))
    if len(plain) != 1:
        raise ValueError(f"{len(plain)} metric records, expected 1")
    metrics = cast(dict[str, Metric], dict(content.metric_records[plain[0]].items()))
    for key, value in metrics.items():
        for number in value if isinstance(value, list) else [value]:
            if not math.isfinite(number):
                raise ValueError(f"metric {key!r:.80} is {number}")
    return metrics


def _weight(metrics: dict[str, Metric], key: str) -> float:
    if key not in metrics:
        raise ValueError(f"metric {key!r}, its weight, is missing")
    weight = metrics[key]
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ValueError(f"weight {key!r} is a {type(weight).__name__}, not a number")
    if not 0 < weight <= _MOST_EXAMPLES:
        raise ValueError(f"weight {key!r} = {weight} is not in (0, 2**53]")
    return weight


def _signature(reply: NodeReply) -> tuple[tuple[str, int], ...]:
    """Names of the metrics an inner strategy averages, and their lengths (-1: a number)."""
    shown = without_ours(reply.metrics)
    return tuple(sorted((key, len(value) if isinstance(value, list) else -1) for key, value in shown.items()))


def _majority(signatures: list[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...] | None:
    """What most clients send; between equals, the smaller, whatever the order of arrival."""
    counts = Counter(signatures)
    return min(counts, key=lambda signature: (-counts[signature], signature), default=None)


def _strip(reply: NodeReply, layout: Layout, weight_key: str) -> None:
    """One array record in the model's own order (two strategies of Flower pair arrays by position), one of metrics."""
    content = reply.message.content
    [(arrays_key, record)] = without_ours(content.array_records).items()
    [(metrics_key, metrics)] = without_ours(content.metric_records).items()
    shown = without_ours(metrics) | {weight_key: reply.weight}
    others = without_ours(content.config_records)
    reply.message.content = RecordDict(
        {
            arrays_key: ArrayRecord({name: record[name] for name in layout.shapes}),
            metrics_key: MetricRecord(shown),
            **others,
        }
    )


def one_line(text: str, limit: int = 200) -> str:
    """What a client wrote, fit for a log: no line breaks, no escape sequences, not endless."""
    return "".join(c if c.isprintable() else "?" for c in text)[:limit]
