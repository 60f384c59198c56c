"""The client of the Flower peer, in a module of its own: from a script, Flower pickles it into every message."""

from __future__ import annotations

import functools
import os

import protocol
import torch
import torch_models
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

app = ClientApp()


@functools.cache
def prepared(directory: str) -> tuple[protocol.Work, torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Data and model, loaded once in each of Ray's actors."""
    torch.set_num_threads(1)
    work = protocol.Work(directory)
    x, y = (torch.from_numpy(array) for array in work.train())
    return work, x, y, torch_models.make(work.model, torch.from_numpy(work.weights()))


@functools.lru_cache(maxsize=1)
def cohort(directory: str, t: int) -> list[protocol.Client]:
    """The round's clients; actors share nothing, so each reads them once a round."""
    return protocol.Work(directory).round(t)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local SGD, as in the naive loop."""
    directory = os.environ["FEDHYPER_BENCHMARK_WORK"]
    work, x, y, model = prepared(directory)
    client = cohort(directory, int(message.content["config"]["t"]))[int(message.content["config"]["slot"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.local_lr)
    for batch in client.batches:
        index = torch.from_numpy(batch)
        optimizer.zero_grad()
        cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": client.examples})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
