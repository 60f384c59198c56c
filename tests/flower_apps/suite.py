"""The apps. Each has a client, a server's strategy, its first weights, its shipped rounds and rate, and a score."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from tests.flower_apps import task

Train = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class App:
    """``rate`` is the shipped one; ``hears``: whether clients take it from the message; ``settings``: FedHyper's."""

    train: Train
    initial: Callable[[], ArrayRecord]
    accuracy: Callable[[ArrayRecord], float]
    rate: float
    rounds: int = 10
    hears: bool = True
    strategy: Callable[[], Strategy] = lambda: FedAvg(fraction_evaluate=0.0)
    settings: dict[str, Any] = field(default_factory=dict)
    mods: tuple[Any, ...] = ()

    def client(self, *mods: Any) -> ClientApp:
        """The client's app, with these mods outside its own."""
        app = ClientApp(mods=[*mods, *self.mods])
        app.train()(self.train)
        return app

    def config(self) -> ConfigRecord:
        return ConfigRecord({"lr": self.rate})


# --- quickstart-pytorch: SGD at the message's rate -------------------------------------------------------------------


def _load(make: Callable[[], torch.nn.Module], arrays: ArrayRecord) -> torch.nn.Module:
    net = make()
    net.load_state_dict(arrays.to_torch_state_dict(), strict=False)
    return net


def pytorch_train(message: Message, context: Context) -> Message:
    net, data = _load(task.mlp, message.content["arrays"]), task.load(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
    loss = task.train(net, data, optimizer)
    return task.answer(message, ArrayRecord(net.state_dict()), train_loss=loss, **{"num-examples": len(data[0])})


def mlp_accuracy(arrays: ArrayRecord) -> float:
    return task.accuracy(_load(task.mlp, arrays))


PYTORCH = App(pytorch_train, lambda: ArrayRecord(task.mlp().state_dict()), mlp_accuracy, rate=0.01)


# --- quickstart-huggingface: AdamW, hard-coded, with a warm-up of its own --------------------------------------------


def adamw_train(message: Message, context: Context) -> Message:
    net, data = _load(task.mlp, message.content["arrays"]), task.load(context)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would have the optimizer's step before the schedule's first
        loss = task.train(net, data, optimizer, [warm.step])
    return task.answer(message, ArrayRecord(net.state_dict()), train_loss=loss, **{"num-examples": len(data[0])})


ADAMW = App(adamw_train, lambda: ArrayRecord(task.mlp().state_dict()), mlp_accuracy, rate=1e-3, hears=False)


# --- quickstart-sklearn: no learning rate at all, arrays in a list ---------------------------------------------------


def sklearn_train(message: Message, context: Context) -> Message:
    x, y = (tensor.numpy() for tensor in task.load(context))
    model = LogisticRegression(max_iter=1, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    loss = log_loss(y, model.predict_proba(x), labels=np.arange(10))
    arrays = ArrayRecord([model.coef_.astype(float), model.intercept_.astype(float)])
    return task.answer(message, arrays, train_logloss=float(loss), **{"num-examples": len(x)})


def sklearn_accuracy(arrays: ArrayRecord) -> float:
    coef, intercept = arrays.to_numpy_ndarrays()
    x, y = (tensor.numpy() for tensor in task.load_all()[1])
    return float(((x @ coef.T + intercept).argmax(1) == y).mean())


SKLEARN = App(
    sklearn_train,
    lambda: ArrayRecord([np.zeros((10, 64)), np.zeros(10)]),
    sklearn_accuracy,
    rate=0.01,
    hears=False,
    rounds=15,
)


# --- Keras: get_weights, a list without names, BatchNorm in it -------------------------------------------------------


def _weights(net: torch.nn.Module) -> ArrayRecord:
    state = net.state_dict()
    return ArrayRecord([value.numpy().copy() for name, value in state.items() if "num_batches" not in name])


def _set_weights(arrays: ArrayRecord) -> torch.nn.Module:
    net = task.batchnorm()
    names = [name for name in net.state_dict() if "num_batches" not in name]
    values = map(torch.tensor, arrays.to_numpy_ndarrays())
    net.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    return net


def keras_train(message: Message, context: Context) -> Message:
    net, data = _set_weights(message.content["arrays"]), task.load(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"], momentum=0.9)
    loss = task.train(net, data, optimizer)
    return task.answer(message, _weights(net), loss=loss, **{"num-examples": len(data[0])})


KERAS = App(
    keras_train, lambda: _weights(task.batchnorm()), lambda arrays: task.accuracy(_set_weights(arrays)), rate=0.01
)


# --- PEFT: only the adapters are sent, AdamW, hard-coded -------------------------------------------------------------


def peft_train(message: Message, context: Context) -> Message:
    net, data = task.Adapted(), task.load(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    loss = task.train(net, data, optimizer)
    return task.answer(message, ArrayRecord(net.partial_state()), train_loss=loss, **{"num-examples": len(data[0])})


PEFT = App(
    peft_train,
    lambda: ArrayRecord(task.Adapted().partial_state()),
    lambda arrays: task.accuracy(_load(task.Adapted, arrays)),
    rate=3e-3,
    hears=False,
)


# --- advanced-pytorch: a strategy with a start, a schedule and files of its own --------------------------------------


class CustomFedAvg(FedAvg):
    """Halves the rate every five rounds, logs each round as to W&B, and saves the best model."""

    def set_save_path(self, path: Path) -> None:
        self.save_path, self.best, self.logged = path, -1.0, []  # type: list[dict[str, Any]]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        if server_round % 5 == 0:
            config["lr"] = float(config["lr"]) * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(self, grid: Any, initial_arrays: ArrayRecord, *args: Any, **named: Any) -> Any:
        self.logged.append({"init": True})
        self.grid_of_this_run = grid
        try:
            return self._loop(grid, initial_arrays, *args, **named)
        finally:
            self.logged.append({"finish": True})

    def _loop(
        self,
        grid: Any,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Any:
        from flwr.serverapp.strategy import Result

        arrays, result = initial_arrays, Result()
        for current in range(1, num_rounds + 1):
            messages = self.configure_train(current, arrays, train_config or ConfigRecord(), grid)
            found, metrics = self.aggregate_train(current, grid.send_and_receive(messages, timeout=timeout))
            arrays = found or arrays
            self.logged.append({"round": current, **dict(metrics or {})})
            if evaluate_fn is not None:
                self._update_best(float(evaluate_fn(current, arrays)["accuracy"]), arrays)
        result.arrays = arrays
        return result

    def _update_best(self, accuracy: float, arrays: ArrayRecord) -> None:
        if accuracy > self.best:
            self.best = accuracy
            torch.save(arrays.to_torch_state_dict(), self.save_path / "best.pt")


APPS = {"pytorch": PYTORCH, "adamw": ADAMW, "sklearn": SKLEARN, "keras": KERAS, "peft": PEFT}


def evaluate_with(app: App) -> Callable[[int, ArrayRecord], MetricRecord]:
    return lambda _, arrays: MetricRecord({"accuracy": app.accuracy(arrays)})


def run(app: App, strategy: Strategy, grid: Any, **named: Any) -> tuple[float, Any]:
    """The final weights' accuracy, and Flower's result."""
    settings = {"num_rounds": app.rounds, "train_config": app.config()} | named
    result = strategy.start(grid=grid, initial_arrays=copy.deepcopy(app.initial()), **settings)
    return app.accuracy(result.arrays), result


def plain_reply(message: Message) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
