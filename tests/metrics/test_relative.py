"""Compare relative flatness with the dense Hessian and its closed form."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import relative_flatness
from tests.metrics.nets import (
    NoisyNet,
    SquaredError,
    dense_hessian,
    make_net,
    mlp,
    samples,
)


def from_dense_hessian(net, X, y, weight, start):
    """Return the sum of <w_s, w_s'> tr(H_ss'), with the weight at ``start``."""
    C, d = weight.shape
    H = dense_hessian(net, X, y)[start : start + C * d, start : start + C * d]
    blocks = H.reshape(C, d, C, d)
    traces = np.einsum("sktk->st", blocks)
    rows = weight.detach().numpy()
    return (rows @ rows.T * traces).sum()


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss, SquaredError])
def test_equals_the_dense_hessian(criterion):
    net, (X, y) = mlp((3, 5, 4), criterion=criterion), samples(12)
    expected = from_dense_hessian(net, X, y, net.module_[2].weight, start=20)
    assert relative_flatness(net, X, y) == pytest.approx(expected, rel=1e-9)


def test_equals_the_closed_form_of_the_cross_entropy():
    net, (X, y) = mlp((3, 5, 4)), samples(12)
    features = net.module_[:2](torch.as_tensor(X)).detach()
    p = torch.softmax(net.module_[2](features), dim=1).detach()
    W = net.module_[2].weight.detach()
    spread = p @ W.square().sum(1) - (p @ W).square().sum(1)
    expected = (features.square().sum(1) * spread).mean().item()
    assert relative_flatness(net, X, y) == pytest.approx(expected, rel=1e-9)


def test_probabilities_with_nll_give_the_same():
    """By default skorch expects a softmax in the module, and the loss takes the log."""
    logits, (X, y) = mlp((3, 5, 4)), samples(12)
    module = nn.Sequential(mlp((3, 5, 4)).module_, nn.Softmax(dim=1))
    net = make_net(module, nn.NLLLoss)
    torch.testing.assert_close(
        module(torch.as_tensor(X)), logits.module_(torch.as_tensor(X)).softmax(1)
    )
    assert relative_flatness(net, X, y) == pytest.approx(
        relative_flatness(logits, X, y), rel=1e-9
    )


def test_a_layer_may_be_called_by_keyword():
    class ByKeyword(nn.Sequential):
        def forward(self, x):
            return self[1](input=torch.tanh(self[0](x)))

    X, y = samples(12)
    layers = nn.Linear(3, 5), nn.Linear(5, 4)
    plain = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    by_keyword = relative_flatness(make_net(ByKeyword(*layers)), X, y)
    assert by_keyword == relative_flatness(make_net(plain), X, y)


def test_the_last_layer_of_a_convolutional_net():
    net, (X, y) = make_net(NoisyNet()), samples(13, (2, 4, 4), 3)
    net.module_.eval()
    weight = net.module_.head.weight
    start = sum(
        p.numel() for n, p in net.module_.named_parameters() if not n.startswith("head")
    )
    expected = from_dense_hessian(net, X, y, weight, start)
    assert relative_flatness(net, X, y) == pytest.approx(expected, rel=1e-9)


class Linear(nn.Module):
    """A criterion without curvature in the logits."""

    reduction = "mean"

    def forward(self, output, y):
        losses = output.gather(1, y[:, None])[:, 0]
        return losses if self.reduction == "none" else losses.mean()


def test_a_loss_linear_in_the_logits_gives_zero():
    net, (X, y) = mlp((3, 5, 4), criterion=Linear), samples(12)
    assert relative_flatness(net, X, y) == 0


def test_modules_without_a_suitable_layer_raise():
    X, y = samples(4, (2, 5, 5), 3)
    no_linear = make_net(nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten()))
    with pytest.raises(InvalidInputError, match=r"calls no nn.Linear"):
        relative_flatness(no_linear, X, y)
    sequence = make_net(nn.Sequential(nn.Linear(3, 4), nn.Flatten(1)))
    with pytest.raises(InvalidInputError, match="one feature vector per sample"):
        relative_flatness(sequence, *samples(4, (2, 3), 4))
