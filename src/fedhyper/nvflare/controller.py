"""``FedHyper``: NVFlare's FedAvg with the server loop, which sets both learning rates while training runs.

A round goes: the model is sent with ``local_lr`` in its meta; the replies are kept one by one (``replies``); the server
loop decides both rates and steps, or returns to the last good weights; what comes out is sent next. Sampling, waiting,
early stopping and events are FedAvg's. NumPy is all the server needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from fedhyper.automatic.auto import auto
from fedhyper.averages import Model
from fedhyper.baselines import Constant
from fedhyper.errors import CheckpointRefused, UserError
from fedhyper.nvflare.replies import LOCAL_LR, LOCAL_LRS, LOSS, TRAIN_LOSS, Arrays, Replies, metric, read, split, weight
from fedhyper.plan import Pair, Plan
from fedhyper.schedulers import FedHyperG, FedHyperSL
from fedhyper.server import Server
from fedhyper.storage import checkpoint as files

SCHEDULES = ("auto", "g", "sl", "g+sl", "constant")


def make_plan(schedule: str, local_lr: float, global_lr: float) -> Plan:
    """The plan of a name; a job's config is JSON, so it cannot be an object."""
    if schedule not in SCHEDULES:
        raise UserError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if schedule == "auto":
        return auto(local_lr=local_lr, global_lr=global_lr)
    parts = schedule.split("+")
    return Pair(
        global_rule=FedHyperG(lr=global_lr) if "g" in parts else Constant(lr=global_lr),
        local_rule=FedHyperSL(lr=local_lr) if "sl" in parts else Constant(lr=local_lr),
    )


class FedHyper(FedAvg):  # type: ignore[misc]  # NVFlare has no types
    """FedAvg whose learning rates set themselves. The model that is saved is the mean of the last rounds.

    schedule    "auto" (no rate to choose), "g", "sl", "g+sl", "constant"
    local_lr    the clients' initial rate, above 0; higher: longer local steps. auto finds its own, and uses this only
                where clients cannot try rates out: none reports ``train_loss``, or no rate makes a difference
    global_lr   the initial global rate, above 0, which multiplies the server's step; higher: longer steps
    checkpoint  a file on the server, outside the job's directory, replaced after every round: a job with the same
                settings goes on from it; None: a job that was killed starts again
    aggregator  NVFlare's place for the replies; leave it out
    kwargs      those of NVFlare's FedAvg: num_clients, num_rounds, persistor_id, stop_cond, ...
    """

    model: Any
    num_rounds: int

    def __init__(
        self,
        *args: Any,
        schedule: str = "auto",
        local_lr: float = 0.01,
        global_lr: float = 1.0,
        checkpoint: str | None = None,
        aggregator: Replies | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, aggregator=aggregator or Replies(), **kwargs)
        make_plan(schedule, local_lr, global_lr)  # refuse bad settings before a run
        # NVFlare writes a job's config from the attributes that are named like arguments, and looks for those of
        # FedAvg only where ours end in **kwargs, by that very name
        self.schedule, self.local_lr, self.global_lr, self.checkpoint = schedule, local_lr, global_lr, checkpoint
        self._asked: list[str] = []

    def run(self) -> None:
        """All rounds, or those that an earlier life of this job has not done."""
        given = self.load_model() if self.model is None else self.model
        params = given.params if isinstance(given, FLModel) else given
        self._shapes = {name: np.shape(array) for name, array in params.items()}
        weights, statistics, self._counters = split(params)
        plan = make_plan(self.schedule, self.local_lr, self.global_lr)
        self.server = Server(weights, plan, statistics=statistics, rounds=self.num_rounds)
        if self.checkpoint and Path(self.checkpoint).exists():
            self._resume(Path(self.checkpoint))
            self.info(f"fedhyper: going on after round {self.server.round} from {self.checkpoint}")
            self.start_round, self.num_rounds = self.server.round, max(self.num_rounds - self.server.round, 0)
        self.model = FLModel(params=self._params(self.server.state.now))
        super().run()

    def send_model(self, *args: Any, targets: list[str], data: FLModel, **arguments: Any) -> None:
        """To all clients at once, with the rates in the meta."""
        self._asked = sorted(targets)
        rates = self.server.rates(len(self._asked))
        tried = dict(zip(self._asked, rates, strict=True)) if set(rates) != {self.server.local_lr} else {}
        data.meta = {**(data.meta or {}), LOCAL_LR: self.server.local_lr, LOCAL_LRS: tried}
        super().send_model(*args, targets=targets, data=data, **arguments)

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """One round of the server loop; NVFlare's mean, ``aggr_result``, gives the metrics alone."""
        sent, state = model.params, self.server.state
        came = [self.aggregator.models.get(name) for name in self._asked]
        read_in = [None if reply is None else read(reply, sent) for reply in came]
        # None: it did not answer, or with another layout, which says nothing of rates
        replies = [reply if arrays is not None else None for reply, arrays in zip(came, read_in, strict=True)]
        updates, statistics, counters = list[Arrays | None](), list[Arrays | None](), list[Arrays]()
        for arrays in read_in:
            if arrays is None:
                updates.append(None)
                statistics.append(None)
                continue
            after = split(arrays)
            updates.append({name: array - after[0][name] for name, array in state.now.weights.items()})
            statistics.append(after[1])
            counters.append(after[2])
        decision = self.server.step(
            updates,
            loss=[metric(reply, LOSS) for reply in replies],
            train_loss=[metric(reply, TRAIN_LOSS) for reply in replies],
            examples=[None if reply is None else weight(reply) for reply in replies],
            statistics=statistics if state.now.statistics else None,
        )
        if decision.action == "step":
            # the lower median: the largest would be whatever one client says
            middle, stacks = (len(counters) - 1) // 2, {n: np.stack([c[n] for c in counters]) for n in self._counters}
            self._counters = {name: np.sort(stack, axis=0)[middle] for name, stack in stacks.items()}
        rates = f"global_lr {decision.global_lr:.4g}, local_lr {decision.local_lr:.4g}"
        self.info(f"fedhyper: round {self.server.round}, {len(counters)} replies, {decision.action}, {rates}")
        if self.checkpoint:
            self._save(Path(self.checkpoint))
        model.params, model.metrics = self._params(self.server.state.now), aggr_result.metrics
        model.meta = dict(aggr_result.meta or {})
        return model

    def save_model(self, model: FLModel) -> None:
        """What is kept is the mean of the last rounds where the schedule has one."""
        super().save_model(FLModel(params=self._params(self.server.state.mean), metrics=model.metrics, meta=model.meta))

    def _params(self, model: Model) -> Arrays:
        """All arrays of a model, in the order and the shapes that they came in."""
        arrays = {**model.weights, **model.statistics, **self._counters}
        return {name: arrays[name].reshape(shape) for name, shape in self._shapes.items()}

    # --- as a file ---------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        shapes = {name: list(array.shape) for name, array in self.server.weights.items()}
        settings = {"schedule": self.schedule, "local_lr": self.local_lr, "global_lr": self.global_lr}
        return {**settings, "shapes": shapes}

    def _save(self, path: Path) -> None:
        tensors: dict[str, Any] = {}
        values = {
            "kind": "nvflare",
            "identity": self._identity(),
            "loop": files.to_plain(self.server.state, tensors, "loop"),
            "counters": files.to_plain(self._counters, tensors, "counters"),
        }
        files.save(path, tensors, values)

    def _resume(self, path: Path) -> None:
        tensors, values = files.load(path)
        if values.get("kind") != "nvflare":
            raise CheckpointRefused(f"{path}: not the checkpoint of an NVFlare job")
        for key, value in self._identity().items():
            if values["identity"].get(key) != value:
                was = values["identity"].get(key)
                raise CheckpointRefused(f"{path}: {key} was {was} and now is {value}; delete it to start again")
        self.server.state = files.from_plain(values["loop"], tensors, self.server.state)
        self._counters = files.from_plain(values["counters"], tensors)
