"""What every node runs."""

import time

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from app.task import batches, examples_of, new_model, test, train
from fedhyper.flower import client_optimizer, climbing_mod, identify, train_reply

# identify: it answers which partition it holds, so that a seed gives the same run every time.
# climbing_mod: in the first round it trains about ten times, at rates of its own choice, and answers with the best; a
# few nodes cannot find a rate otherwise. Leave it out where a round is long and there are ten nodes or more.
app = identify(ClientApp(mods=[climbing_mod]))
torch.set_num_threads(1)  # a sum split among threads has other bits


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Train on this node's own examples, at the rate the server sends."""
    config, partition = context.run_config, int(context.node_config["partition-id"])
    model = new_model(config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = examples_of(partition, int(context.node_config["num-partitions"]), config)
    steps = list(batches(len(x), config, int(message.content["config"]["server-round"]), partition))
    time.sleep(float(config["delay"]))
    optimizer = client_optimizer(model, message, local_steps=len(steps), context=context)
    before, _ = test(model, x, y)  # on all of it: to a server with few nodes the loss of one batch is noise
    losses = train(model, x, y, steps, optimizer)
    mean = sum(losses) / len(losses)
    return train_reply(message, model, examples=len(x), loss=before, context=context, train_loss=mean)


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """How good the global model is on this node's own examples."""
    config = context.run_config
    model = new_model(config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition, partitions = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    x, y = examples_of(partition, partitions, config)
    loss, accuracy = test(model, x, y)
    metrics = MetricRecord({"num-examples": len(x), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
