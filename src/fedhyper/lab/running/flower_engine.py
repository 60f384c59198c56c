"""An experiment with its clients in Flower's Simulation Engine: the same config, run directory, report and bits.

The simulator's server stays; what trains the clients of a round is an engine that sends each one's work as a Flower
message to the node with its number, and takes the replies back in order. Clients run the slow twin, so a run has the
bits of ``engine = "sequential"``, which a test holds it to.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedhyper.errors import UserError
from fedhyper.flower.client.reply import identify
from fedhyper.flower.nodes import Roster
from fedhyper.flower.records.layout import pack, view
from fedhyper.lab.config.model import Config, dump, make_config
from fedhyper.lab.config.toml import parse_toml
from fedhyper.lab.plugins import import_inherited
from fedhyper.lab.running.build import cores, make_simulation
from fedhyper.lab.running.progress import Listener, Summary
from fedhyper.lab.running.run import run_experiment as run_here
from fedhyper.sim.data.augment import Augment
from fedhyper.sim.data.partition import Partition
from fedhyper.sim.engines.base import ClientTask, Engine, Reply, Sent
from fedhyper.sim.simulation import Simulation

_VECTORS = ("delta", "buffers", "counters")
_SCALARS = ("first_loss", "mean_loss", "lr_mean", "lr_min", "lr_max", "lr_last")
_LONGEST_WAIT = 300.0  # seconds until all clients of a simulation have registered


def run_experiment(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    fresh: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    display: Listener | None = None,
) -> Summary:
    """``lab.run.run_experiment`` with every client a node of Flower's Simulation Engine; ``workers`` processes."""
    if device != "cpu":
        raise UserError(f"--device {device} does not go with --engine flower; its clients run on the CPU")
    if config.validation:
        raise UserError(f"validation = {config.validation:g} does not go with --engine flower; leave it out")
    with _Flower(config, workers or cores()) as grid:
        make = partial(_make, grid=grid)
        return run_here(
            config,
            out,
            resume=resume,
            fresh=fresh,
            workers=workers,
            device=device,
            display=display,
            make=make,
            engine="flower",
        )


def _make(config: Config, *, grid: Grid, **settings: Any) -> Simulation:
    sim = make_simulation(_sequential(config), **settings)
    sim.engine = FlowerEngine(grid, sim.engine, sim.partition.clients)
    return sim


def _sequential(config: Config) -> Config:
    return config.model_copy(update={"engine": "sequential"})


class FlowerEngine:
    """Trains clients on Flower's nodes; evaluates here, with ``local``."""

    def __init__(self, grid: Grid, local: Engine, clients: int) -> None:
        self.grid, self.local = grid, local
        roster = Roster(clients, _LONGEST_WAIT)
        online = roster.assemble(grid, ask=True)
        self.nodes = {roster.partitions[node]: node for node in online}
        if missing := [client for client in range(clients) if client not in self.nodes]:
            raise UserError(
                f"client {missing[0]} has no node in Flower's simulation; {len(self.nodes)} of {clients} came"
            )

    def train(self, tasks: Sequence[ClientTask], sent: Sent) -> Iterator[Reply]:
        """One message a task, of which a client may have several (it judges by each of its batches); one that fails
        counts as an update that is not finite."""
        common = {name: tensor for name, tensor in sent._asdict().items() if isinstance(tensor, Tensor)}
        weights = ArrayRecord({name: pack(tensor.numpy()) for name, tensor in common.items()})
        messages = [
            Message(_to_content(task, weights, sent), self.nodes[task.client], MessageType.TRAIN, group_id=str(i))
            for i, task in enumerate(tasks)
        ]
        came = [(reply.metadata, reply) for reply in self.grid.send_and_receive(messages)]
        answers = {(about.src_node_id, about.group_id): reply for about, reply in came}
        for i, task in enumerate(tasks):
            reply = _read(task, answers.get((self.nodes[task.client], str(i))))
            yield reply if reply is not None and reply.delta.shape == sent.weights.shape else _failed(task, sent)

    def evaluate(self, sent: Sent) -> tuple[float, float]:
        """Mean loss and accuracy on the test set."""
        return self.local.evaluate(sent)

    def accuracy_by_client(self, sent: Sent, partition: Partition) -> list[float]:
        """Accuracy on each client's own training examples."""
        return self.local.accuracy_by_client(sent, partition)

    def close(self) -> None:
        """Give threads and settings back."""
        self.local.close()


def _to_content(task: ClientTask, weights: ArrayRecord, sent: Sent) -> RecordDict:
    batches = list(task.batches)
    lengths = np.asarray([len(batch) for batch in batches], np.int64)
    return RecordDict(
        {
            "weights": weights,
            "batches": ArrayRecord({"indices": pack(np.concatenate(batches)), "lengths": pack(lengths)}),
            "config": ConfigRecord(
                {"client": task.client, "examples": task.examples, "local-lr": sent.local_lr, "cohort": sent.cohort}
                | ({} if task.augment is None else task.augment._asdict())
            ),
        }
    )


def _read(task: ClientTask, answer: Message | None) -> Reply | None:
    """A client's reply, or None when it failed or answered something else."""
    if answer is None or answer.has_error():
        return None
    try:
        vectors = [_tensor(answer.content.array_records["update"], name) for name in _VECTORS]
        scalars = [_number(answer.content.metric_records["scalars"][name]) for name in _SCALARS]
    except (KeyError, ValueError, TypeError):
        return None
    return Reply._make((task.client, task.examples, *vectors, *scalars))


def _failed(task: ClientTask, sent: Sent) -> Reply:
    nothing = (math.nan for _ in _SCALARS)
    update = (torch.full_like(sent.weights, math.nan), sent.buffers, sent.counters)
    return Reply._make((task.client, task.examples, *update, *nothing))


def _number(value: Any) -> float:
    return float(value)


def _tensor(record: ArrayRecord, name: str) -> Tensor:
    return torch.from_numpy(view(record[name]).copy())


def make_client_app(config: str) -> ClientApp:
    """What a node runs: one client's local steps, in the words of the simulator. ``config`` is TOML."""
    app = identify(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        records, settings = message.content.array_records, message.content.config_records["config"]
        received = {name: _tensor(records["weights"], name) for name in records["weights"]}
        sent = Sent(
            weights=received["weights"],
            buffers=received["buffers"],
            counters=received["counters"],
            local_lr=_number(settings["local-lr"]),
            delta=received.get("delta"),
            cohort=int(_number(settings["cohort"])),
        )
        ends = np.cumsum(view(records["batches"]["lengths"]))
        batches = np.split(view(records["batches"]["indices"]).copy(), ends[:-1])
        augment = Augment(*(settings[name] for name in Augment._fields)) if "kind" in settings else None  # type: ignore[arg-type]
        task = ClientTask(int(_number(settings["client"])), int(_number(settings["examples"])), batches, augment)
        [reply] = _engine(config).train([task], sent)
        update = ArrayRecord({name: pack(getattr(reply, name).numpy()) for name in _VECTORS})
        scalars = MetricRecord({name: float(getattr(reply, name)) for name in _SCALARS})
        return Message(RecordDict({"update": update, "scalars": scalars}), reply_to=message)

    return app


@cache
def _engine(config: str) -> Engine:
    """The slow twin, with its data; a worker process serves many clients."""
    import_inherited()
    return make_simulation(_sequential(make_config(parse_toml(config.encode(), "config"))), workers=1).engine


class _Flower:
    """Flower's simulation beside us: its ServerApp hands over the grid and waits until we are done with it.

    It runs in a thread of its own because the main one is where signals arrive. ``run_simulation`` is deprecated in
    favour of ``flwr run``, which would need an app directory and leaves a server behind; it is what there is.
    """

    def __init__(self, config: Config, workers: int) -> None:
        self._grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self._done = threading.Event()
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._done.wait()

        self._server, self._client = server, make_client_app(dump(config))
        self._nodes, self._workers = config.clients, workers
        self._thread = threading.Thread(target=self._run, name="flower", daemon=True)

    def _run(self) -> None:
        from flwr.simulation import run_simulation

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns at every start
        try:
            run_simulation(
                self._server,
                self._client,
                self._nodes,
                backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": self._workers}},
            )
        except BaseException as error:  # goes to the thread that waits for the grid
            self._grids.put(error)

    def __enter__(self) -> Grid:
        self._level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread.start()
        grid = self._grids.get()
        if isinstance(grid, BaseException):
            raise UserError(f"Flower's simulation did not start: {grid}") from grid
        return grid

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(60)
        logging.getLogger("flwr").setLevel(self._level)
