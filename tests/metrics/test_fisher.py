"""Compare Fisher-Rao norm and Fisher trace with loops and Liang's identity."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.metrics import fisher_rao_norm, mean_fisher_trace
from tests.metrics.nets import NoisyNet, make_net, mean_loss, mlp, samples


def naive(net, X, y, of_gradient):
    values = []
    for n in range(len(y)):
        loss, w = mean_loss(net, X[n : n + 1], y[n : n + 1])
        values.append(of_gradient(torch.func.grad(loss)(w), w).item())
    return np.mean(values)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(3, 4), (3, 5, 4), (3, 6, 5, 4)])
def test_values_equal_the_loop(sizes, bias):
    net, (X, y) = mlp(sizes, bias=bias), samples(15)
    expected = naive(net, X, y, lambda g, w: (g @ w) ** 2)
    assert fisher_rao_norm(net, X, y) == pytest.approx(expected, rel=1e-9)
    expected = naive(net, X, y, lambda g, w: g @ g)
    assert mean_fisher_trace(net, X, y) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n_hidden", [0, 1, 3])
def test_identity_of_relu_nets_without_bias(n_hidden):
    """w^T F w = (L + 1)^2 E[<dloss/df, f>^2]: the output is homogeneous in w."""
    net, (X, y) = mlp((3, *[6] * n_hidden, 4), bias=False), samples(25)
    f = net.module_(torch.as_tensor(X)).detach().requires_grad_(True)
    losses = nn.functional.cross_entropy(f, torch.as_tensor(y), reduction="sum")
    slope = torch.autograd.grad(losses, f)[0]
    radial = (slope * f).sum(1).square().mean().item()
    expected = (n_hidden + 1) ** 2 * radial
    assert fisher_rao_norm(net, X, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("metric", [fisher_rao_norm, mean_fisher_trace])
def test_convolutions_and_norms(metric):
    net, (X, y) = make_net(NoisyNet()), samples(6, (2, 4, 4), 3)
    net.module_.eval()
    of_gradient = (
        (lambda g, w: (g @ w) ** 2)
        if metric is fisher_rao_norm
        else (lambda g, w: g @ g)
    )
    expected = naive(net, X, y, of_gradient)
    assert metric(net, X, y) == pytest.approx(expected, rel=1e-6)
