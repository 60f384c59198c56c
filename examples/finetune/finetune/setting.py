"""What server and nodes of the Flower app have in common: the data, the model, who holds what, and what is sent."""

from functools import cache

import numpy as np

from fedhyper.sim.data.partition import make_partition
from fedhyper.sim.data.tasks import load_task
from fedhyper.sim.models import make_model
from finetune import plugin  # noqa: F401  (registers the tasks and the models)

TASKS = {"minilm": "sst2", "tiny": "sst2-smoke"}


@cache  # a process serves many nodes, and each of them loads all that is trained before it trains
def setting(size):
    """The task and its model, the same everywhere: only what is trained is sent."""
    task = load_task(TASKS[size])
    return task, make_model(task.model, task.shape, task.classes, seed=0, tokens=task.tokens)


@cache
def split(size, nodes):
    """Who holds which sentences."""
    labels = setting(size)[0].labels
    return make_partition("dirichlet", labels, nodes, seed=0, concentration=1.0, min_size=16)


def own_batches(task, message, context):
    """The sentences of each local step of this node in this round."""
    node, config = context.node_config, context.run_config
    own = split(config["size"], node["num-partitions"]).client(node["partition-id"])
    rng = np.random.default_rng([node["partition-id"], message.content["config"]["server-round"]])
    return [rng.choice(own, config["batch-size"], replace=False) for _ in range(config["local-steps"])]


def trained(model):
    """What is trained, by name: all that is ever sent."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
