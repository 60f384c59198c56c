"""FedLab 1.3, standalone: its serial trainer and synchronous handler, with batches and sizes that we hand it.

python fedlab_peer.py DIRECTORY THREADS
"""

from __future__ import annotations

import sys
import types
import warnings

import protocol
import torch
import torch_models

line = protocol.private_stdout()
# FedLab imports torchvision for datasets that are not used here; the registry's build of it does not load beside a
# CPU build of torch.
sys.modules["torchvision"] = vision = types.ModuleType("torchvision")
sys.modules["torchvision.transforms"] = vision.transforms = types.ModuleType("torchvision.transforms")
warnings.simplefilter("ignore")
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402  (it prints on import)
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.utils import Aggregators, SerializationTool  # noqa: E402


class Batches:
    """FedLab asks for a loader by client; ours gives the round's batches, from tensors in memory."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.clients: dict[int, protocol.Client] = {}

    def get_dataloader(self, client: int, batch_size: int):
        for batch in self.clients[client].batches:
            index = torch.from_numpy(batch)
            yield self.x[index], self.y[index]


class Trainer(SGDSerialClientTrainer):
    """Sends the number of examples too, as FedLab's FedAvg trainer does."""

    def local_process(self, payload, id_list):
        for client in id_list:
            pack = self.train(payload[0], self.dataset.get_dataloader(client, self.batch_size))
            self.cache.append([*pack, self.dataset.clients[client].examples])


class Handler(SyncServerHandler):
    """Means weighted by examples, over clients that we name."""

    def global_update(self, buffer):
        mean = Aggregators.fedavg_aggregate([pack[0] for pack in buffer], [float(pack[1]) for pack in buffer])
        SerializationTool.deserialize_model(self._model, mean)


def main() -> None:
    """Serve rounds: the body of ``StandalonePipeline.main``."""
    work = protocol.Work(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    data = Batches(*(torch.from_numpy(array) for array in work.train()))
    model = torch_models.make(work.model, torch.from_numpy(work.weights()))
    handler = Handler(model, global_round=10**9, sample_ratio=work.clients_per_round / work.clients)
    trainer = Trainer(model, num_clients=work.clients)
    trainer.setup_dataset(data)
    trainer.setup_optim(epochs=1, batch_size=work.batch_size, lr=work.local_lr)
    handler.num_clients = work.clients

    def run(clients: list[protocol.Client]) -> None:
        data.clients = {client.number: client for client in clients}
        trainer.local_process(handler.downlink_package, list(data.clients))
        for pack in trainer.uplink_package:
            handler.load(pack)

    protocol.serve(line, work, run, lambda: handler.model_parameters.numpy())


if __name__ == "__main__":
    main()
