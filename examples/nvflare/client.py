"""A client of NVFlare. Three lines are FedHyper's: the loss before, the rate to train with, what to send back."""

import argparse

import nvflare.client as flare
import torch
import torch.nn.functional as F
from digits import Net, load

from fedhyper.nvflare import local_lr, reply

parser = argparse.ArgumentParser()
parser.add_argument("--clients", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
options = parser.parse_args()

flare.init()
number = int(flare.get_site_name().removeprefix("site-")) - 1
(x, y), (test_x, test_y) = load(number, options.clients)
torch.set_num_threads(1)
model = Net()

while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    model.load_state_dict(received.params)
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        loss_before = F.cross_entropy(model(x), y).item()  # over all its data: one batch is noise to three clients

    optimizer = torch.optim.SGD(model.parameters(), lr=local_lr(received))
    losses = []
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1000 * received.current_round + number))
    for batch in order.split(options.batch):
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    told = {"loss": loss_before, "train_loss": sum(losses) / len(losses), "accuracy": accuracy}
    flare.send(reply(model, examples=len(y), **told))
