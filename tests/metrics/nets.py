"""Small skorch nets in float64 for the tests of flatness."""

from types import SimpleNamespace

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance.metrics.flatness._frame import Weights


class SquaredError(nn.Module):
    """Half the squared distance of the output from a one-hot target."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, output, y):
        target = nn.functional.one_hot(y, output.shape[1]).to(output.dtype)
        losses = 0.5 * (output - target).square().sum(1)
        return losses if self.reduction == "none" else losses.mean()


class NoisyNet(nn.Module):
    """Convolution, batch norm and dropout, which differ in train mode."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x.to(self.conv.weight.dtype))))
        return self.head(self.drop(x.mean((2, 3))))


def make_net(module, criterion=nn.CrossEntropyLoss, dtype=torch.float64, seed=0):
    """Return an initialised net with random weights."""
    generator = torch.Generator().manual_seed(seed)
    module = module.to(dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.7, generator=generator)
    return NeuralNetClassifier(module, criterion=criterion, device="cpu").initialize()


def mlp(sizes=(3, 5, 4), bias=True, **kwargs):
    """Return a ReLU net with these layer sizes."""
    layers = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:]):  # noqa: RUF007
        layers += [nn.Linear(n_in, n_out, bias=bias), nn.ReLU()]
    return make_net(nn.Sequential(*layers[:-1]), **kwargs)


def samples(N=20, shape=(3,), C=4, seed=0):
    """Return inputs (N, ...) in float64 and class codes (N,)."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, *shape)), rng.integers(C, size=N)


def ensemble_of(nets, classes):
    """Return an object with the attributes that flatness metrics need."""
    return SimpleNamespace(estimators_=nets, classes_=np.asarray(classes))


def mean_loss(net, X, y):
    """Return the mean loss as a function of a flat weight vector."""
    x, target = torch.as_tensor(X), torch.as_tensor(y)
    named = dict(net.module_.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def loss(vector):
        parts = vector.split(sizes)
        params = {n: v.view_as(p) for (n, p), v in zip(named.items(), parts)}
        output = torch.func.functional_call(net.module_, params, (x,))
        return net.criterion_(output, target)

    origin = torch.cat([p.detach().reshape(-1) for p in named.values()])
    return loss, origin


def dense_hessian(net, X, y):
    """Return the Hessian (d, d) of the mean loss by torch.autograd.functional."""
    loss, origin = mean_loss(net, X, y)
    return torch.autograd.functional.hessian(loss, origin).numpy()


def spy_on_written_weights(monkeypatch):
    """Return a list of all weight vectors that a measure writes."""
    written, write = [], Weights.write

    def spy(self, vector):
        written.append(vector.clone())
        write(self, vector)

    monkeypatch.setattr(Weights, "write", spy)
    return written
