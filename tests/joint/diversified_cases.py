"""Data and modules of the tests of joint training."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance import DiversifiedEnsembleClassifier as Diversified

LOSSES = ["sed", "a2d", "divdis"]


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    y = (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 1)
    return X, y


class Looped(MLP):
    """An MLP with a custom forward, which is not stacked."""

    def forward(self, x):
        return super().forward(x)


class Noisy(nn.Module):
    """A network with dropout and running statistics."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.hidden = nn.Linear(n_features, 16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, n_classes)

    def forward(self, x):
        return self.last(self.drop(self.hidden(self.norm(x)).relu()))


def configured(module=MLP, optimizer=torch.optim.AdamW, lr=0.01, **params):
    """Return a net with settings that do not depend on the ensemble."""
    return NeuralNetClassifier(
        module, criterion=nn.CrossEntropyLoss, optimizer=optimizer, lr=lr, **params
    )


def diversified(**params):
    defaults = {"max_epochs": 4, "batch_size": 32, "random_state": 0, "device": "cpu"}
    return Diversified(**defaults | params)


def weights(nets):
    return [dict(net.module_.named_parameters()) for net in nets]


def assert_same_weights(nets, others, tol):
    for got, want in zip(weights(nets), weights(others), strict=True):
        for key, value in want.items():
            torch.testing.assert_close(got[key], value, atol=tol, rtol=tol)
