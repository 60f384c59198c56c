"""``mod``: a client follows the server's rate, whatever torch optimizer it builds; its training loop stays as it is.

    app = ClientApp(mods=[fedhyper.flower.mod])

It also reports what the server likes to know: the mean loss over the steps, and the rate that was used.
``climbing_mod`` does more, for runs of few rounds or few clients: in the first round, when the server asks for it, the
client trains several times at rates of its own choice and answers with the best.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType

from fedhyper.automatic.ladder import TRIED, Ladder
from fedhyper.flower import wire
from fedhyper.flower.client.optimizer import local_lr, train_config
from fedhyper.flower.client.watch import watching
from fedhyper.flower.records.batchnorm import statistics
from fedhyper.flower.records.layout import views
from fedhyper.flower.records.sums import sq_distance

Call = Callable[[Message, Context], Message]

_HIGHEST = 10.0  # the highest rate that is tried; local_lr accepts none above it
_STILL = 1e-30  # a rate at which nothing moves


def mod(message: Message, context: Context, call_next: Call) -> Message:
    """A client mod: the server's rate on every torch optimizer that steps while the client trains.

    Groups of parameters keep the ratios of their rates, and a schedule of the client's own (warm-up, cosine) its shape.

    message    what the server sent
    context    the node's, as Flower gives it
    call_next  the next mod, or the app
    """
    if not _asks_to_train(message):
        return call_next(message, context)
    return _train(message, context, call_next, local_lr(message)).reply


def climbing_mod(message: Message, context: Context, call_next: Call) -> Message:
    """``mod``, and in the server's start the client trains at several rates, about ten times as long as in a round.

    Each try begins from the message, the state and the random numbers of the first; what else a client does while it
    trains (files, a log) it does each time.

    message    what the server sent
    context    the node's, as Flower gives it
    call_next  the next mod, or the app
    """
    asked = train_config(message) if _asks_to_train(message) else ConfigRecord()
    if not asked.get(wire.CLIMB):
        return mod(message, context, call_next)
    ladder, scores, best = _ladder(asked[wire.CLIMB]), dict[int, float](), None
    state, numbers = copy.deepcopy(context.state), _random_numbers()

    def train(given: Message, rate: float) -> _Trained:
        context.state = copy.deepcopy(state)
        _restore(numbers)
        return _train(given, context, call_next, rate)

    def attempt(rate: float) -> tuple[Message | None, float]:
        try:
            tried = train(copy.deepcopy(message), rate)
            if tried.steps != 1 or (onwards := _sent_again(message, tried.reply)) is None:
                return tried.reply, tried.loss
            # its only losses are from before its only step: what the same batch loses after it
            after = context.state
            loss = train(onwards, _STILL).loss
            context.state = after
        except Exception:  # a client may well refuse to go on at a rate far too high
            return None, math.inf
        return tried.reply, (tried.loss + loss) / 2

    first, _ = attempt(TRIED)
    start = ladder.start(*_moved(message, first)) if first is not None else ladder.rung(TRIED)
    kept_state = context.state
    while (rung := ladder.next(scores, start)) is not None:
        reply, score = attempt(ladder.rate(rung)) if rung <= ladder.rung(_HIGHEST) else (None, math.inf)
        if reply is not None and (best is None or score < min(scores.values(), default=math.inf)):
            best, kept_state = reply, context.state
        scores[rung] = score
    context.state = kept_state
    best, vote = best or first, ladder.vote(scores)
    if best is None:  # at any rate: let the client say what is wrong
        return mod(message, context, call_next)
    if asked.get(wire.BINNED):  # also where it has none: masked replies are all of one form
        _report(best, {wire.VOTES: ladder.binned(vote)})
    elif vote is not None:
        _report(best, {wire.VOTE: vote, wire.GAIN: ladder.gained(scores)})
    return best


def _ladder(ratio: object) -> Ladder:
    """With the rungs that the server counts by; what cannot be a factor between two rates is not believed."""
    return Ladder(ratio) if isinstance(ratio, float) and 1 < ratio < math.inf else Ladder()


def _asks_to_train(message: Message) -> bool:
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return False
    return any(wire.LOCAL_LR in record for record in message.content.config_records.values())


class _Trained(NamedTuple):
    reply: Message
    loss: float  # the mean over its steps; infinity where it is not finite
    steps: int


def _train(message: Message, context: Context, call_next: Call, rate: float) -> _Trained:
    """The client's reply at this rate, and what it did for it."""
    with watching(rate) as watch:
        reply = call_next(message, context)
    losses = watch.losses
    said: dict[str, float] = {wire.USED_LR: rate} if watch.steps else {}
    if losses and all(map(math.isfinite, losses)):
        # not the first batch's beside it: one batch is noise to few clients (digits, 3 and 5 of them, skewed and not,
        # 20 runs of 20 rounds: 90.2 % on average with it, 92.1 without, 94.5 with the loss over all their data)
        said[wire.MEAN_LOSS] = fmean(losses)
    _report(reply, said)
    return _Trained(reply, said.get(wire.MEAN_LOSS, math.inf), watch.steps)


def _report(reply: Message, said: Mapping[str, float | list[float]]) -> None:
    """Beside the client's own metrics; what it says itself stands."""
    for record in reply.content.metric_records.values() if reply.has_content() else ():
        for key, value in said.items():
            record.setdefault(key, value)
        break


def _sent_again(message: Message, reply: Message) -> Message | None:
    """What the server sent, with the arrays that came back in place of its own; None: these are others."""
    again = copy.deepcopy(message)
    sent, came = (next(iter(m.content.array_records.items()), None) for m in (again, reply))
    if sent is None or came is None or list(sent[1]) != list(came[1]):
        return None
    again.content[sent[0]] = copy.deepcopy(came[1])
    return again


def _moved(message: Message, reply: Message) -> tuple[float, float]:
    """How far a client moved what it trains, and the length of that."""
    sent, came = (views(next(iter(m.content.array_records.values()))) for m in (message, reply))
    known = statistics(sent).known
    names = [name for name in sent if name in came and name not in known and sent[name].dtype.kind == "f"]
    length = sum(float(np.square(sent[name], dtype=np.float64).sum()) for name in names)
    return math.sqrt(sq_distance(sent, came, names)), math.sqrt(length)


def _random_numbers() -> tuple[object, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(numbers: tuple[object, ...]) -> None:
    random.setstate(numbers[0])  # type: ignore[arg-type]
    np.random.set_state(numbers[1])  # type: ignore[arg-type]
    torch.set_rng_state(numbers[2])  # type: ignore[arg-type]
