"""The model and the data: 1,797 handwritten digits of 8×8 pixels, which come with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)  # the server's first weights
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


def load(client, clients):
    """One client's training images, and the test images that all share: every fifth."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    test = torch.arange(len(y)) % 5 == 0
    return (x[~test][client::clients], y[~test][client::clients]), (x[test], y[test])
