"""Digits in pfl's simulator from a rate 100 times too small: python digits.py

1,797 handwritten digits of 8×8 pixels, which come with scikit-learn; 20 users, 10 a round.
"""

import argparse
import logging

import numpy as np
import torch
from fedhyper_pfl import FedHyper, LocalRate, make_server
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fedhyper import auto
from fedhyper.torch import HyperServer

USERS, COHORT = 20, 10


class Net(nn.Sequential):
    """One hidden layer, and what pfl asks of a model."""

    def loss(self, x, y):
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        scores = self(x)
        return {
            "loss": Weighted(float(cross_entropy(scores, y, reduction="sum")), len(y)),
            "accuracy": Weighted(float((scores.argmax(1) == y).sum()), len(y)),
        }


class Show(TrainingProcessCallback):
    """Prints the accuracy on the test images and the rates."""

    def __init__(self, test, rates, kept):
        self.test, self.rates, self.kept, self.rows = test, rates, kept, []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        with torch.no_grad():
            scores = torch.func.functional_call(model.pytorch_model, self.kept(), self.test[0])
        accuracy = float((scores.argmax(1) == self.test[1]).float().mean())
        self.rows.append((accuracy, *self.rates()))
        print(central_iteration + 1, *(f"{number:.4g}" for number in self.rows[-1]), flush=True)
        return False, Metrics()


def run(method="fedhyper", rounds=30, local_lr=0.001, checkpoints=None, seed=0):
    """What ``Show`` prints, and the newest weights. ``method``: fedavg, hyperserver (the global rate) or fedhyper."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    test = torch.arange(len(y)) % 5 == 0
    train = x[~test], y[~test]

    def user(number):
        return Dataset((train[0][number::USERS], train[1][number::USERS]), user_id=str(number))

    net = Net(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    central = HyperServer(net.parameters()) if method == "hyperserver" else torch.optim.SGD(net.parameters(), lr=1.0)
    model = PyTorchModel(net, torch.optim.SGD, central)
    sampler = get_user_sampler("random", list(range(USERS)))
    data = FederatedDataset(user, sampler)
    backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()])
    if method == "fedhyper":
        server = make_server(model, auto(local_lr=local_lr))
        algorithm, rate = FedHyper(server), LocalRate(server)
        show = Show((x[test], y[test]), lambda: (server.global_lr, server.local_lr), lambda: server.averaged)
    else:
        algorithm, rate = FederatedAveraging(), local_lr
        rates = lambda: (central.param_groups[0]["lr"], local_lr)  # noqa: E731
        show = Show((x[test], y[test]), rates, lambda: dict(net.named_parameters()))
    restore = [RestoreTrainingCallback([model, algorithm], checkpoints)] if checkpoints else []
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds + 1, train_cohort_size=COHORT, val_cohort_size=0
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=rate, local_batch_size=32),
        NNEvalHyperParams(local_batch_size=None),
        [*restore, show],
        send_metrics_to_platform=False,
    )
    return show.rows, {name: weight.detach().clone() for name, weight in net.named_parameters()}


if __name__ == "__main__":
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=("fedavg", "hyperserver", "fedhyper"), default="fedhyper")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--local-lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run(options.method, options.rounds, options.local_lr, seed=options.seed)
