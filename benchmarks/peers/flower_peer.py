"""Flower's simulation: FedAvg on Ray with two actors of one CPU each, the client in a module.

python flower_peer.py DIRECTORY
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import protocol

line = protocol.private_stdout()
os.environ |= {
    "FEDHYPER_BENCHMARK_WORK": str(Path(sys.argv[1]).resolve()),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's actors import the client by name
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}
import flower_client  # noqa: E402
import torch  # noqa: E402
import torch_models  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

work = protocol.Work(sys.argv[1])
app = ServerApp()


class Finished(Exception):
    """The driver has enough."""


class Driven(FedAvg):
    """FedAvg on the driver's rounds. A node takes the work of one client, whichever node it is."""

    def __init__(self, arrays: ArrayRecord) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.arrays, self.started = arrays, 0.0
        self.rounds = protocol.commands(line, self.weights)

    def weights(self) -> protocol.Floats:
        return torch.cat([value.reshape(-1) for value in self.arrays.to_torch_state_dict().values()]).numpy()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        if self.started:
            print(repr(time.perf_counter() - self.started), file=line)
        t = next(self.rounds, None)
        if t is None:
            raise Finished
        slots = range(len(work.round(t)))
        self.started = time.perf_counter()
        nodes = sorted(grid.get_node_ids())[: len(slots)]
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"t": t, "slot": slot})}),
                dst_node_id=node,
                message_type="train",
            )
            for slot, node in zip(slots, nodes, strict=True)
        ]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds until the driver has enough."""
    while len(list(grid.get_node_ids())) < work.clients_per_round:
        time.sleep(0.1)
    model = torch_models.make(work.model, torch.from_numpy(work.weights()))
    arrays = ArrayRecord(model.state_dict())
    try:
        Driven(arrays).start(grid, arrays, num_rounds=10**9)
    except Finished:
        return


if __name__ == "__main__":
    config: dict[str, Any] = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(app, flower_client.app, num_supernodes=work.clients, backend_config=config)
