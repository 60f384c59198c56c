"""pfl-research 0.6: its federated averaging on the simulated backend, alone or under torchrun with several processes.

python pfl_peer.py DIRECTORY THREADS
torchrun --nproc-per-node 2 pfl_peer.py DIRECTORY 1
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import protocol

line = protocol.private_stdout()
import torch  # noqa: E402
import torch_models  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDatasetBase  # noqa: E402
from pfl.hyperparam.base import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
START = -1


class Net(torch.nn.Module):
    """pfl wants loss and metrics as methods of the model."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


class Cohorts(FederatedDatasetBase):
    """The clients of a round, those of this process: each goes to the process with the least to do, largest first."""

    def __init__(self, work: protocol.Work) -> None:
        super().__init__()
        self.work = work
        self.x, self.y = (torch.from_numpy(array) for array in work.train())
        self.clients: list[protocol.Client] = []

    def __next__(self) -> Any:
        raise NotImplementedError("whole cohorts only")

    def get_cohort(self, cohort_size: int) -> Any:
        load = [0] * WORLD
        for client in self.clients:
            chosen = load.index(min(load))
            load[chosen] += client.examples
            if chosen == RANK:
                index = torch.cat([torch.from_numpy(batch) for batch in client.batches])
                yield Dataset((self.x[index], self.y[index])), 0


class Driver(TrainingProcessCallback):
    """Between two iterations: answers the driver, waits for the next round, and gives it to every process."""

    def __init__(self, cohorts: Cohorts, model: PyTorchModel) -> None:
        self.cohorts, self.model, self.started = cohorts, model, 0.0
        self.rounds = protocol.commands(line, self.weights) if RANK == 0 else None

    def weights(self) -> protocol.Floats:
        return torch_models.flat(self.model.pytorch_model).numpy()

    def wait(self) -> bool:
        """Whether there is nothing more to do."""
        t = next(self.rounds, START) if self.rounds is not None else START
        if WORLD > 1:
            told = torch.tensor([t])
            torch.distributed.broadcast(told, 0)
            t = int(told)
        if t == START:
            return True
        self.cohorts.clients = self.cohorts.work.round(t)
        self.started = time.perf_counter()
        return False

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        if RANK == 0:
            print(repr(time.perf_counter() - self.started), file=line)
        return self.wait(), Metrics()


class Quiet(FederatedAveraging):
    """Without the evaluation of every client before and after training that pfl does in its first iteration."""

    def get_next_central_contexts(self, model: Any, iteration: int, *args: Any) -> Any:
        return super().get_next_central_contexts(model, max(iteration, 1), *args)


def main() -> None:
    """Serve rounds from inside ``algorithm.run``."""
    logging.disable(logging.CRITICAL)
    work = protocol.Work(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    net = Net(torch_models.make(work.model, torch.from_numpy(work.weights())))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    cohorts = Cohorts(work)
    params = NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=work.clients_per_round,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_batch_size=work.batch_size, local_num_epochs=1, local_learning_rate=work.local_lr)
    backend = SimulatedBackend(training_data=cohorts, val_data=cohorts, postprocessors=[WeightByDatapoints()])
    driver = Driver(cohorts, model)
    Quiet().run(params, backend, model, local, callbacks=[driver], send_metrics_to_platform=False)


if __name__ == "__main__":
    main()
