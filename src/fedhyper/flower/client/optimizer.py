"""The optimizer the server asks for, at a rate that is checked again here.

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
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from fedhyper.flower import wire
from fedhyper.flower.records.layout import Arrays, pack, views
from fedhyper.flower.wire import CLIENT, DELTA, DELTA_NAMES, DELTA_TYPE, LOCAL_LR
from fedhyper.guard import clamp

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def train_config(message: Message) -> ConfigRecord:
    """The entries that the server sent for this round."""
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
    sent = train_config(message)[LOCAL_LR]
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
    config = train_config(message)
    settings: dict[str, Any] = {key.removeprefix(CLIENT): v for key, v in config.items() if key.startswith(CLIENT)}
    if not settings:
        return torch.optim.SGD(model.parameters(), lr=rate, **options)
    from fedhyper.client import HyperSGD

    if local_steps is None:
        raise ValueError("the server's schedule has CL: client_optimizer needs local_steps, the steps of this round")
    delta = _delta(model, message, context, float(settings.pop("global_lr")))
    initial = float(clamp(float(settings.pop("lr")), min_lr, max_lr, keep=rate))
    # CL moves the rate on its own; the highest it can reach is ours to limit, too
    most = max_lr if settings["bounds"] == "absolute" else max_lr / initial
    settings.update(initial_lr=initial, bound=max(min(settings["bound"], most), 1.0))
    return HyperSGD(model.parameters(), lr=rate, local_steps=local_steps, delta=delta, **settings, **options)


def _delta(model: nn.Module, message: Message, context: Context | None, global_lr: float) -> list[Tensor] | None:
    """Δ_t-1 for every parameter: sent by the server, or (w_t-1 − w_t) / α from the weights this node kept."""
    named: Arrays | None = None
    if DELTA in train_config(message):
        named = _sent_difference(message)
    elif context is not None:
        named = _kept_difference(message, context, global_lr)
    return None if named is None else _match(model, named)


def _sent_difference(message: Message) -> Arrays | None:
    """From the bytes in the config; None unless they are as many as the arrays of these names have."""
    config, sent = train_config(message), views(_model(message))
    names, data = config.get(DELTA_NAMES), config[DELTA]
    dtype = np.dtype({"float16": np.float16}.get(str(config.get(DELTA_TYPE)), np.float32))
    if not names or not isinstance(names, list) or not isinstance(data, bytes) or not sent.keys() >= set(names):
        return None
    sizes = [sent[str(name)].size for name in names]
    if len(data) != sum(sizes) * dtype.itemsize:
        return None
    pieces = np.split(np.frombuffer(data, dtype), np.cumsum(sizes)[:-1])
    return {str(n): piece.reshape(sent[str(n)].shape) for n, piece in zip(names, pieces, strict=True)}


def _model(message: Message) -> ArrayRecord:
    return next(iter(wire.without_ours(message.content.array_records).values()))


def _kept_difference(message: Message, context: Context, global_lr: float) -> Arrays | None:
    """Only the weights of the very last round will do; then keep the newest for the next one."""
    newest = _model(message)
    server_round = int(train_config(message).get(wire.SERVER_ROUND, 0))  # type: ignore[arg-type]
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
