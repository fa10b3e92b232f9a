"""The optimizers inside a plain skorch net."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance.optim import OPTIMIZERS
from tests.optim.reference import BASES, OPTIONS, naive_run, problem


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, X):
        return self.head(torch.tanh(self.hidden(X)))


@pytest.mark.parametrize("method", OPTIMIZERS)
def test_fit_equals_naive_loops(method):
    start, batches = problem(steps=3)
    options = BASES["sgd"][1] | OPTIONS[method] | {"rho": 0.2}
    net = NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=OPTIMIZERS[method],
        train_split=None,
        iterator_train__shuffle=False,
        batch_size=8,
        max_epochs=2,
        verbose=0,
        **{f"optimizer__{name}": value for name, value in options.items()},
    ).initialize()
    with torch.no_grad():
        for p, w in zip(net.module_.parameters(), start):
            p.copy_(w)
    X, y = (torch.cat(parts).numpy() for parts in zip(*batches))
    net.partial_fit(X.astype(np.float32), y)
    expected = naive_run(method, "sgd", start, 2 * batches, rho=0.2)
    for p, w in zip(net.module_.parameters(), expected):
        torch.testing.assert_close(p.double(), w, rtol=1e-4, atol=1e-5)
