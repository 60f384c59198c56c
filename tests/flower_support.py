"""An in-process Flower: a Grid that runs a ClientApp at once, and replies made by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # private: Message() works only inside a run

from fedhyper import Auto

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

Spoil = Callable[[Message], Message]


class NoStart(Auto):
    """auto in a host whose clients cannot try rates out."""

    @property
    def ladder(self) -> Any:
        return None


class LocalGrid(Grid):
    """``clients`` nodes with node ids in an order that has nothing to do with their partitions.

    ``shuffle`` changes node ids and the order of replies, as a new simulation does. ``spoil`` maps a partition to a
    function that gets its reply and gives back what the server receives (or a list of replies, or nothing).
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        *,
        shuffle: int = 0,
        spoil: dict[int, Any] | None = None,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        rng = np.random.default_rng(shuffle)
        ids = rng.choice(10**9, clients, replace=False) + 2
        self.app, self.rng, self.spoil = app, rng, spoil or {}
        self.contexts = {
            int(node): Context(
                1, int(node), {"partition-id": i, "num-partitions": clients}, RecordDict(), run_config or {}
            )
            for i, node in enumerate(ids)
        }
        self.sent: list[Message] = []
        self.dead: set[int] = set()

    def partition(self, node: int) -> int:
        return int(self.contexts[node].node_config["partition-id"])

    def get_node_ids(self) -> Iterable[int]:
        return [int(n) for n in self.rng.permutation([n for n in self.contexts if self.partition(n) not in self.dead])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        out: list[Message] = []
        for message in messages:
            message = copy.deepcopy(message)
            message.metadata.__dict__["_message_id"] = str(len(self.sent))
            self.sent.append(message)
            context = self.contexts[message.metadata.dst_node_id]
            try:
                reply = self.app(message, context)
            except Exception as error:
                reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            spoil = self.spoil.get(int(context.node_config["partition-id"]))
            if spoil is not None and message.metadata.message_type == "train":
                spoilt = spoil(reply)
                out += spoilt if isinstance(spoilt, list) else [spoilt]
            else:
                out.append(reply)
        return [out[i] for i in self.rng.permutation(len(out))]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def arrays(**named: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in named.items()})


def numbers(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array.numpy() for name, array in record.items()}


def same_bits(a: ArrayRecord, b: ArrayRecord) -> bool:
    return list(a) == list(b) and all(
        (a[k].dtype, a[k].shape, a[k].data) == (b[k].dtype, b[k].shape, b[k].data) for k in a
    )


SHAPES = {"conv.weight": (4, 3), "bn.weight": (4,), "bn.running_mean": (4,), "fc.weight": (2, 4)}


def initial() -> ArrayRecord:
    """A small model with BatchNorm statistics and a counter."""
    rng = np.random.default_rng(0)
    named = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return arrays(**named, **{"bn.num_batches_tracked": np.asarray(0, np.int64)})


def quadratic_app(*, answers: bool = True, loss: bool = True, examples: Callable[[int], int] = lambda p: 10 + p) -> Any:
    """A client without torch: gradient steps on |w − centre_p|²/2, so everything is known in closed form."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        lr = float(message.content["config"]["local-lr"])
        rng = np.random.default_rng(100 + partition)
        named = numbers(message.content["arrays"])
        losses = np.zeros(5)  # before each step
        for name, value in named.items():
            centre = rng.standard_normal(value.shape).astype(np.float32) + 2
            if name == "bn.num_batches_tracked":
                named[name] = value + 3 + partition
            elif name == "bn.running_mean":
                named[name] = np.full_like(value, partition)
            else:
                for step in range(5):
                    losses[step] += float(((value - centre) ** 2).sum()) / 2
                    value = value - np.float32(lr) * (value - centre)
                named[name] = value
        first, mean = float(losses[0]), float(losses.mean())
        metrics: dict[str, Any] = {"num-examples": examples(partition), "train_loss": mean}
        if loss:
            metrics["fedhyper.loss"] = first
            metrics["fedhyper.round"] = message.content["config"]["server-round"]
        return Message(RecordDict({"arrays": arrays(**named), "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    if answers:
        from fedhyper.flower import identify

        identify(app)
    return app


def config(**values: Any) -> ConfigRecord:
    return ConfigRecord(values)
