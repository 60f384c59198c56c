"""What a client says of itself: which partition it holds, and what came of a round of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedhyper.flower import wire
from fedhyper.flower.client.optimizer import train_config
from fedhyper.flower.records.layout import views
from fedhyper.flower.records.sums import sq_distance

if TYPE_CHECKING:
    from torch import nn


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


def train_reply(
    message: Message, model: nn.Module, *, examples: int, loss: float, context: Context | None = None, **metrics: float
) -> Message:
    """The reply of a training round: the model, its weight, |Δ_m|², and ``loss``, by which damage is noticed.

    message   what the server sent for this round
    model     after training
    examples  how many this client trained on: its weight in the mean
    loss      at the weights that were sent, before the first step, over all that this client trains on: a forward pass
              more. One batch's will do only where ten clients or more answer a round (three, digits: one batch ended
              at 8 to 89 %, all of them at 95)
    context   adds the partition, by which the server puts replies in order; None: it is left out
    metrics   yours; the inner strategy averages them
    """
    sent = views(next(iter(wire.without_ours(message.content.array_records).values())))
    trained = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    moved = sq_distance(sent, trained, [name for name in trained if name in sent])
    ours: dict[str, int | float] = {wire.LOSS: float(loss), wire.SQ_NORM: moved}
    if isinstance(server_round := train_config(message).get(wire.SERVER_ROUND), int):
        ours[wire.ROUND] = server_round
    if context is not None and isinstance(partition := context.node_config.get(wire.PARTITION_ID), int):
        ours[wire.PARTITION] = partition
    record = MetricRecord({wire.EXAMPLES: examples, **metrics, **ours})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": record}), reply_to=message)
