"""The optimizers inside a plain skorch net."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance.optim import OPTIMIZERS
from tests.optim.reference import OPTIONS, NaiveBase, NaiveSAM, loss_of, problem


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, X):
        return self.head(torch.tanh(self.hidden(X)))


def data(n_batches=3):
    start, batches = problem(steps=n_batches)
    X = torch.cat([b[0] for b in batches]).numpy().astype(np.float32)
    return start, X, torch.cat([b[1] for b in batches]).numpy()


def make_net(start, method="sam", **kwargs):
    net = NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=OPTIMIZERS[method],
        train_split=None,
        iterator_train__shuffle=False,
        batch_size=8,
        verbose=0,
        **kwargs,
    ).initialize()
    with torch.no_grad():
        for p, w in zip(net.module_.parameters(), start):
            p.copy_(w)
    return net


@pytest.mark.parametrize("method", OPTIMIZERS)
def test_fit_equals_naive_loops(method):
    start, X, y = data()
    options = {f"optimizer__{k}": v for k, v in OPTIONS[method].items()}
    net = make_net(
        start,
        method,
        lr=0.1,
        max_epochs=2,
        optimizer__rho=0.2,
        optimizer__momentum=0.9,
        **options,
    )
    net.partial_fit(X, y)
    sam, w = NaiveSAM(method, 0.2, **OPTIONS[method]), start
    base = NaiveBase("sgd", lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        for i in range(0, len(X), 8):
            batch = torch.tensor(X[i : i + 8]).double(), torch.tensor(y[i : i + 8])
            losses.append(float(loss_of(w, batch)))
            w = base.update(w, sam.direction(w, batch, momentum=base.m))
    for p, expected in zip(net.module_.parameters(), w):
        torch.testing.assert_close(p.double(), expected, rtol=1e-4, atol=1e-5)
    if method == "momentum_sam":
        return  # its only loss is that at the perturbed weights
    # skorch reports the loss at the unperturbed weights
    assert net.history[:, "train_loss"] == pytest.approx(
        [np.mean(losses[:3]), np.mean(losses[3:])], rel=1e-4
    )
