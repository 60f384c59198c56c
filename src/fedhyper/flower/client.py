"""The client's side: the optimizer the server asks for, at a rate that is checked again here.

    @app.train()
    def train(message, context):
        ...
        optimizer = client_optimizer(model, message)          # instead of torch.optim.SGD(model.parameters(), lr=...)

Server and client do not trust each other: a rate that is not a finite number in [min_lr, max_lr] never reaches a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedhyper.flower import wire
from fedhyper.flower.layout import Arrays, pack, views
from fedhyper.flower.losses import sq_distance
from fedhyper.flower.wire import CLIENT, DELTA, LOCAL_LR
from fedhyper.guard import clamp

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def identify(app: ClientApp) -> ClientApp:
    """Let ``app`` answer which partition its node holds, so that a server with a seed can sample by it.

    app  the client's app; it comes back
    """

    @app.query(wire.ACTION)
    def answer(message: Message, context: Context) -> Message:
        record = ConfigRecord()
        for key in (wire.PARTITION_ID, wire.NUM_PARTITIONS):
            if key in context.node_config:
                record[key] = context.node_config[key]
        return Message(RecordDict({wire.ANSWER: record}), reply_to=message)

    return app


def _config(message: Message) -> ConfigRecord:
    for record in message.content.config_records.values():
        if LOCAL_LR in record:
            return record
    raise ValueError(f"the message has no {LOCAL_LR!r}; wrap the server's strategy in fedhyper.flower.FedHyper")


def local_lr(message: Message, *, min_lr: float = 1e-8, max_lr: float = 10.0) -> float:
    """The server's rate inside [min_lr, max_lr]; ``min_lr``, which does next to nothing, when it is not a number.

    message  what the server sent for this round
    min_lr   lowest rate this client accepts, above 0
    max_lr   highest rate this client accepts; raising it trusts the server more
    """
    sent = _config(message)[LOCAL_LR]
    number = float(sent) if isinstance(sent, (int, float)) else math.nan
    return float(clamp(number, min_lr, max_lr, keep=min_lr))


def client_optimizer(
    model: nn.Module,
    message: Message,
    *,
    local_steps: int | None = None,
    context: Context | None = None,
    min_lr: float = 1e-8,
    max_lr: float = 10.0,
    **options: Any,
) -> Optimizer:
    """``torch.optim.SGD``, or ``HyperSGD`` when the server's schedule has CL, with the server's rate.

    model        whose parameters are trained; it has the weights that were sent
    message      what the server sent for this round
    local_steps  K ≥ 1, the steps of this client in this round; CL needs it
    context      lets CL remember the weights between rounds (``send_delta="cached"``)
    min_lr       lowest rate this client accepts, above 0
    max_lr       highest rate this client accepts; raising it trusts the server more
    options      go to the optimizer whole: momentum, weight_decay, ...
    """
    import torch

    rate = local_lr(message, min_lr=min_lr, max_lr=max_lr)
    if CLIENT not in message.content.config_records:
        return torch.optim.SGD(model.parameters(), lr=rate, **options)
    from fedhyper.client import HyperSGD

    if local_steps is None:
        raise ValueError("the server's schedule has CL: client_optimizer needs local_steps, the steps of this round")
    settings: dict[str, Any] = dict(message.content.config_records[CLIENT].items())
    delta = _delta(model, message, context, float(settings.pop("global_lr")))
    initial = float(clamp(float(settings.pop("lr")), min_lr, max_lr, keep=rate))
    # CL moves the rate on its own; the highest it can reach is ours to limit, too
    most = max_lr if settings["bounds"] == "absolute" else max_lr / initial
    settings.update(initial_lr=initial, bound=max(min(settings["bound"], most), 1.0))
    return HyperSGD(model.parameters(), lr=rate, local_steps=local_steps, delta=delta, **settings, **options)


def _delta(model: nn.Module, message: Message, context: Context | None, global_lr: float) -> list[Tensor] | None:
    """Δ_t-1 for every parameter: sent by the server, or (w_t-1 − w_t) / α from the weights this node kept."""
    named: Arrays | None = None
    if DELTA in message.content.array_records:
        named = views(message.content.array_records[DELTA])
    elif context is not None:
        named = _kept_difference(message, context, global_lr)
    return None if named is None else _match(model, named)


def _kept_difference(message: Message, context: Context, global_lr: float) -> Arrays | None:
    """Only the weights of the very last round will do; then keep the newest for the next one."""
    newest = next(iter(wire.without_ours(message.content.array_records).values()))
    server_round = int(_config(message).get(wire.SERVER_ROUND, 0))  # type: ignore[arg-type]
    named = None
    kept = context.state.config_records.get(wire.KEPT_ROUND)
    if kept is not None and kept["round"] == server_round - 1:
        old, new = views(context.state.array_records[wire.KEPT]), views(newest)
        named = {k: (old[k] - new[k]) / np.float32(global_lr) for k in old if new[k].dtype.kind == "f"}
    context.state[wire.KEPT] = ArrayRecord({name: pack(array) for name, array in views(newest).items()})
    context.state[wire.KEPT_ROUND] = ConfigRecord({"round": server_round})
    return named


def _match(model: nn.Module, named: Arrays) -> list[Tensor] | None:
    """In the order of ``model.parameters()``; None unless every piece has its parameter's shape and is finite."""
    import torch

    pieces = []
    for name, parameter in model.named_parameters():
        array = named.get(name)
        if array is None or array.shape != tuple(parameter.shape) or not np.isfinite(array).all():
            return None  # CL then runs without its global term, as in the first round
        pieces.append(torch.tensor(array.astype(np.float32), device=parameter.device, dtype=parameter.dtype))
    return pieces


def train_reply(
    message: Message, model: nn.Module, *, examples: int, loss: float, context: Context | None = None, **metrics: float
) -> Message:
    """The reply of a training round: the model, its weight, |Δ_m|², and ``loss``, that of the first batch.

    message   what the server sent for this round
    model     after training
    examples  how many this client trained on: its weight in the mean
    loss      at the weights that were sent, before the first step
    context   adds the partition, by which the server puts replies in order; None: it is left out
    metrics   yours; the inner strategy averages them
    """
    sent = views(next(iter(wire.without_ours(message.content.array_records).values())))
    trained = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    moved = sq_distance(sent, trained, [name for name in trained if name in sent])
    ours: dict[str, int | float] = {wire.LOSS: float(loss), wire.SQ_NORM: moved}
    if isinstance(server_round := _config(message).get(wire.SERVER_ROUND), int):
        ours[wire.ROUND] = server_round
    if context is not None and isinstance(partition := context.node_config.get(wire.PARTITION_ID), int):
        ours[wire.PARTITION] = partition
    record = MetricRecord({wire.EXAMPLES: examples, **metrics, **ours})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": record}), reply_to=message)
