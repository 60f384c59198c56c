"""The client's two lines: the rate to train with, and what to send back.

optimizer = torch.optim.SGD(model.parameters(), lr=local_lr(received))
flare.send(reply(model, examples=len(data), loss=before, train_loss=mean))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nvflare.client as flare
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedhyper.nvflare.replies import LOCAL_LR, LOCAL_LRS, LOSS, TRAIN_LOSS

if TYPE_CHECKING:
    from torch import nn


def local_lr(received: FLModel, default: float = 0.01) -> float:
    """The rate of this round, above 0: this site's own while the server has rates tried out, else the one for all.

    received  what ``flare.receive()`` gave
    default   the rate under a controller that sends none, such as NVFlare's FedAvg
    """
    meta = received.meta or {}
    rates = meta.get(LOCAL_LRS) or {}
    return float(rates[flare.get_site_name()] if rates else meta.get(LOCAL_LR, default))


def reply(
    model: nn.Module, *, examples: int, loss: float, train_loss: float | None = None, **metrics: float
) -> FLModel:
    """What to send back after training.

    model       after training
    examples    how many this client trained on: its weight in the mean
    loss        at the weights that were sent, over the data it then trains on: a forward pass more. The first batch's
                is too noisy to tell rates apart where few clients try them (three, digits: 8 to 89 %, and not 95)
    train_loss  mean over the local steps, each before its step; None: rates cannot be tried out at the start
    metrics     yours; NVFlare averages them over the clients
    """
    tried = {} if train_loss is None else {TRAIN_LOSS: float(train_loss)}
    return FLModel(
        params={name: tensor.detach().cpu() for name, tensor in model.state_dict().items()},
        params_type=ParamsType.FULL,
        metrics={**metrics, LOSS: float(loss), **tried},
        meta={FLMetaKey.NUM_STEPS_CURRENT_ROUND: examples},  # NVFlare's own weight for means
    )
