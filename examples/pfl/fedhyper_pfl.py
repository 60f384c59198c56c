"""FedHyper for pfl: an algorithm that runs the server loop, and the local rate as a hyperparameter that follows it.

pfl shows the server nothing but sums over a cohort, so rates are not tried out at the start and the losses are one
mean. Copy this file; it needs nothing but fedhyper, torch and pfl.
"""

import os

import torch
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.exception import CheckpointNotFoundError
from pfl.hyperparam.base import HyperParam
from pfl.metrics import Metrics, StringMetricName, Weighted, get_overall_value
from pfl.stats import MappedVectorStatistics

from fedhyper import Server

LOSS, SQ_NORM = StringMetricName("loss at the weights sent"), StringMetricName("squared length of an update")
GLOBAL_LR, LOCAL_LR = StringMetricName("global learning rate"), StringMetricName("local learning rate")


class LocalRate(HyperParam):
    """The rate for the users of the next cohort: ``NNTrainHyperParams(local_learning_rate=LocalRate(server), ...)``."""

    def __init__(self, server):
        self.server = server

    def value(self):
        return self.server.local_lr


def make_server(model, plan=None):
    """A server loop around a ``PyTorchModel``; learning-rate-free unless a plan is given."""
    return Server(dict(model.get_parameters().items()), plan)


class FedHyper(FederatedAveraging):
    """Federated averaging whose learning rates set themselves. ``model.metrics`` must have a weighted "loss"."""

    def __init__(self, server):
        super().__init__()
        self.server = server

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """As pfl does; with it go the loss before training and |Δ_m|²."""
        before = model.evaluate(user_dataset, lambda name: LOSS if name == "loss" else StringMetricName(name))
        statistics, metrics = super().train_one_user(initial_model_state, model, user_dataset, central_context)
        sq_norm = sum(float((difference.double() ** 2).sum()) for _, difference in statistics.items())
        metrics[LOSS], metrics[SQ_NORM] = before[LOSS], Weighted(sq_norm * len(user_dataset), len(user_dataset))
        return statistics, metrics

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        """One round of the server loop: Δ = before − after is minus what pfl averages."""
        statistics.average()
        self.server.step(
            {name: -difference for name, difference in statistics.items()},
            loss=get_overall_value(aggregate_metrics[LOSS]),
            sq_norm=get_overall_value(aggregate_metrics[SQ_NORM]),
        )
        model.set_parameters(MappedVectorStatistics(self.server.weights))
        rates = [(GLOBAL_LR, self.server.global_lr), (LOCAL_LR, self.server.local_lr)]
        return model, Metrics([(name, Weighted.from_unweighted(rate)) for name, rate in rates])

    def save(self, dir_path):
        """For pfl's RestoreTrainingCallback: the algorithm's state and the loop's."""
        super().save(dir_path)
        torch.save(self.server.state_dict(), os.path.join(dir_path, "fedhyper.pt"))

    def load(self, dir_path):
        """Go on from ``save``."""
        super().load(dir_path)
        path = os.path.join(dir_path, "fedhyper.pt")
        if not os.path.exists(path):
            raise CheckpointNotFoundError(path)
        self.server.load_state_dict(torch.load(path, weights_only=True))
