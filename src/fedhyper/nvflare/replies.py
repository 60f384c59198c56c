"""What clients sent back in a round, kept one by one; NVFlare's own aggregator adds them up as they come.

Kept, because clients that try different rates out must not be averaged before it is known which rate was best; and
summed up in the order of the clients' names, because a sum in the order of arrival has other bits each time. It costs
the server one model a client.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedhyper.arrays import is_number
from fedhyper.errors import UserError

LOCAL_LR = "local_lr"  # in the meta of the model that is sent
LOCAL_LRS = "local_lrs"  # the same, name of the client → rate, while rates are tried out
LOSS, TRAIN_LOSS = "loss", "train_loss"  # in the metrics of a reply

Arrays = dict[str, NDArray[Any]]
_BUFFERS = ("running_mean", "running_var", "moving_mean", "moving_variance")  # torch's BatchNorm, and Keras'


class Replies(ModelAggregator):  # type: ignore[misc]  # NVFlare has no types
    """The replies of a round, by the client's name."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, FLModel] = {}

    def accept_model(self, model: FLModel) -> None:
        """Keep one reply."""
        self.models[model.meta["client_name"]] = model

    def aggregate_model(self) -> FLModel:
        """The weighted means of the metrics that all clients report; of the weights the server loop makes one."""
        models = [self.models[name] for name in sorted(self.models)]
        told = [{k: v for k, v in (model.metrics or {}).items() if is_number(v)} for model in models]
        total = sum(map(weight, models))
        known = [key for key in (told[0] if told else ()) if all(key in one for one in told)]
        means = {k: sum(weight(m) * one[k] for m, one in zip(models, told, strict=True)) / total for k in known}
        return FLModel(params={}, metrics=means or None, meta={})

    def reset_stats(self) -> None:
        """Forget the round before."""
        self.models = {}


def split(params: dict[str, Any]) -> tuple[Arrays, Arrays, Arrays]:
    """A model's arrays: those that are trained, the statistics (averaged, never stepped), and the counters."""
    if odd := next((name for name, array in params.items() if not isinstance(array, np.ndarray)), None):
        got = type(params[odd]).__name__
        raise UserError(f"server_expected_format must be NUMPY, got {got} for {odd}; FedHyper steps NumPy arrays")
    arrays = {name: np.atleast_1d(array) for name, array in params.items()}  # arithmetic on 0 axes leaves no array
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    statistics = {name: array for name, array in floats.items() if name.endswith(_BUFFERS)}
    trained = {name: array for name, array in floats.items() if name not in statistics}
    return trained, statistics, {name: array for name, array in arrays.items() if name not in floats}


def read(reply: FLModel, sent: Arrays) -> Arrays | None:
    """The model after a client trained it; None where it has other arrays than the one that was ``sent``: other names,
    shapes or kinds, for a counter that came as a float would be trained."""
    arrays = {name: np.asarray(array) for name, array in reply.params.items()}
    theirs, ours = ({name: (a.shape, a.dtype.kind) for name, a in some.items()} for some in (arrays, sent))
    if theirs != ours:
        return None
    return {n: np.asarray(sent[n] + a) for n, a in arrays.items()} if reply.params_type == ParamsType.DIFF else arrays


def weight(reply: FLModel) -> float:
    """What a reply counts in the means: its NUM_STEPS_CURRENT_ROUND; 1, as in NVFlare, where that makes no sense."""
    told: object = (reply.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    return float(told) if is_number(told) and 0 < told < math.inf else 1.0


def metric(reply: FLModel | None, key: str) -> float | None:
    """The number ``key`` of a reply; None where there is none."""
    value: object = None if reply is None else (reply.metrics or {}).get(key)
    return float(value) if is_number(value) else None
