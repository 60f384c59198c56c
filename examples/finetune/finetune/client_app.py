"""A node: LoRA with AdamW at a rate of its own, as such clients are written. The mod is what fedhyper adds."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedhyper.flower import mod
from finetune.setting import own_batches, setting, trained

app = ClientApp(mods=[mod])  # the server's rate on whatever optimizer steps below; without a FedHyper server, nothing


@app.train()
def train(message: Message, context: Context) -> Message:
    """A few steps from the adapters that came, and the adapters back."""
    task, net = setting(context.run_config["size"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    net.train()
    rate = message.content["config"].get("lr", 5e-5)
    optimizer = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=rate)
    losses = []
    for rows in own_batches(task, message, context):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(task.train_x[rows]), task.train_y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    metrics = {"train_loss": sum(losses) / len(losses), "num-examples": len(losses) * context.run_config["batch-size"]}
    content = RecordDict({"arrays": ArrayRecord(trained(net)), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
