"""What clients are told of a schedule: entries in the train config and no record more, which every mod bears."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedhyper.automatic.ladder import Ladder
from fedhyper.automatic.tries import Tries
from fedhyper.flower.aggregate import Aggregate
from fedhyper.flower.losses import used_lr
from fedhyper.flower.records.layout import Arrays
from fedhyper.flower.wire import BINNED, CLIENT, CLIMB, DELTA, DELTA_NAMES, DELTA_TYPE, LOCAL_LR
from fedhyper.loop import LoopState
from fedhyper.schedulers import FedHyperCL

LR_KEYS = ("lr", "learning-rate", "learning_rate", "client-lr", "client_lr", "local_lr")

UNHEARD = (
    "the clients' updates are as long at a low rate as at a high one: they do not seem to use the rate in the config"
    " entry %r (lr_key=). The server still steps with momentum and keeps a mean, but no local rate is found, or logged."
    " ClientApp(mods=[fedhyper.flower.mod]) sets it on any torch optimizer that clients build with a rate of their own,"
    " AdamW, too"
)

UNTOLD = (
    "the first round's losses tell no rate from another, and there are only %d rounds: clients go on with the rate they"
    " were given, %g. The client mod fedhyper.flower.climbing_mod finds a better one in the first round"
)
TRIED = (
    "%d clients tried rates from %.3g to %.3g in this round; the replies of the %d nearest the best, at %s, are used,"
    " and the next round's rate is %.3g"
)
WAITS = "%d clients tried rates from %.3g to %.3g in this round; the weights wait for a closer look around the best"
FEW = 7  # clients a round: with fewer the first round has gaps of more than a factor of 10
SHORT = 5  # rounds: of Flower's examples 16 of 22 have no more. There is no time to come back from a guess


def rate_entries(config: ConfigRecord, named: str | None) -> tuple[str, ...]:
    """The entries of the train config that the rate goes into; ``named`` is the one the app says its clients read."""
    if named is not None:
        return (LOCAL_LR, named)
    return (LOCAL_LR, *([key for key in LR_KEYS if key in config] or ["lr"]))


def put_back(messages: list[Message], entries: Sequence[str], rate: float) -> bool:
    """Our rate where the inner strategy put one of its own (a decay by rounds); whether there was such a place."""
    changed = False
    for message in messages:
        for record in message.content.config_records.values():
            if LOCAL_LR in record and any(record.get(key) != rate for key in entries):
                record.update(dict.fromkeys(entries, rate))
                changed = True
    return changed


def _extend(messages: Sequence[Message], extra: Callable[[int], dict[str, Any]]) -> None:
    """Add entries to the train config of each message: FedAvg puts one content into all of them."""
    for i, message in enumerate(messages):
        records = dict(message.content.items())
        for name, record in records.items():
            if isinstance(record, ConfigRecord) and LOCAL_LR in record:
                records[name] = record = record.copy()
                record.update(extra(i))
        message.content = RecordDict(records)


def spread_rates(ladder: Ladder, messages: list[Message], state: LoopState, entries: Sequence[str]) -> dict[int, int]:
    """Give every node a rate of its own to try out; node → rung comes back.

    A client that can try several rates by itself is told that it may.
    """
    rungs = Tries(ladder, state.plan.tried).spread(len(messages))
    _extend(messages, lambda i: {**dict.fromkeys(entries, ladder.rate(rungs[i])), CLIMB: ladder.ratio})
    return {message.metadata.dst_node_id: rung for message, rung in zip(messages, rungs, strict=True)}


def let_climb(ladder: Ladder, messages: list[Message], *, binned: bool) -> None:
    """Tell clients that can try several rates by themselves that they may. ``binned``: nobody will see their votes."""
    _extend(messages, lambda _: {CLIMB: ladder.ratio} | ({BINNED: True} if binned else {}))


def attach_rule(
    rule: FedHyperCL, messages: list[Message], state: LoopState, send_delta: Literal["full", "half", "cached"]
) -> None:
    """FedHyper-CL's settings, and the last aggregate unless clients keep the weights themselves."""
    settings = {key: value for key, value in asdict(rule).items() if key != "local_steps"}
    settings["global_lr"] = float(state.plan.global_lr)
    extra: dict[str, Any] = {f"{CLIENT}{key}": value for key, value in settings.items()}
    if rule.global_term != "off" and isinstance(state.before, dict) and send_delta != "cached":
        named: Arrays = state.before
        dtype = np.dtype(np.float16 if send_delta == "half" else np.float32)
        largest = float(np.finfo(dtype.name).max)
        pieces = [np.clip(array, -largest, largest).astype(dtype).tobytes() for array in named.values()]
        extra |= {DELTA: b"".join(pieces), DELTA_NAMES: list(named), DELTA_TYPE: dtype.name}
    _extend(messages, lambda _: extra)


def rates_used(
    made: Aggregate, ladder: Ladder | None, rungs: Mapping[int, int], sent: float, *, heard: bool, waits: bool
) -> list[float]:
    """The local rates of the replies that were used: as clients say, else as they were sent; one if all are equal.

    ``heard``: whether clients use what they are sent; if not, a rate that no client says is not known: NaN. ``waits``:
    none was used, and these are the rates that were tried.
    """
    if waits and ladder is not None and rungs:
        return [ladder.rate(rung) for rung in sorted(rungs.values())]
    found = []
    for reply in made.believed:
        said = used_lr(reply.metrics)
        tried = ladder.rate(rungs[reply.node]) if ladder is not None and reply.node in rungs else sent
        found += [said] if said is not None else [tried] if heard else []
    return found if len(set(found)) > 1 else found[:1] or [sent if heard else math.nan]


def tried(
    ladder: Ladder, rungs: Mapping[int, int], rates: Sequence[float], used: int, next_lr: float, *, waits: bool
) -> str:
    """What a round was for in which only a few of the replies are used: Flower's log says how many, and not why."""
    low, high = ladder.rate(min(rungs.values())), ladder.rate(max(rungs.values()))
    if waits:
        return WAITS % (len(rungs), low, high)
    at = " to ".join(f"{rate:.3g}" for rate in sorted({min(rates), max(rates)}))
    return TRIED % (len(rungs), low, high, used, at, next_lr)


def too_few(clients: int, rounds: int) -> str | None:
    """What to say where a run is too short, for so few clients a round, to find a rate and to train at it."""
    if clients >= FEW or rounds > SHORT:
        return None
    cure = "the client mod fedhyper.flower.climbing_mod finds one in the first round"
    return f"{clients} clients a round need more than {rounds} rounds to find a rate, and have tried only a few; {cure}"
