"""One loss per sample by the net's own criterion."""

import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.exceptions import InvalidInputError


def make_net(criterion, **kwargs):
    return NeuralNetClassifier(
        nn.Linear,
        module__in_features=2,
        module__out_features=3,
        criterion=criterion,
        **kwargs,
    ).initialize()


def test_cross_entropy_on_logits():
    logits, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    net = make_net(nn.CrossEntropyLoss)
    expected = -logits.log_softmax(1)[range(4), y]
    torch.testing.assert_close(sample_losses(net, logits, y), expected)
    assert net.criterion_.reduction == "mean"


def test_nll_loss_takes_probabilities_as_in_skorch():
    proba = torch.rand(4, 3, dtype=torch.float64).softmax(1)
    y = torch.tensor([0, 1, 2, 0])
    actual = sample_losses(make_net(nn.NLLLoss), proba, y)
    torch.testing.assert_close(actual, -proba[range(4), y].log())


def test_losses_with_more_axes_are_averaged():
    outputs, y = torch.randn(4, 3), torch.zeros(4, 3)
    actual = sample_losses(make_net(nn.MSELoss), outputs, y)
    torch.testing.assert_close(actual, outputs.square().mean(1))


def test_reduction_is_restored_after_an_error():
    net = make_net(nn.CrossEntropyLoss, criterion__reduction="sum")
    with pytest.raises(IndexError):
        sample_losses(net, torch.randn(2, 3), torch.tensor([0, 7]))
    assert net.criterion_.reduction == "sum"


class Mean(nn.Module):
    def forward(self, outputs, y):
        return outputs.mean()


def test_criterion_without_reduction_raises():
    with pytest.raises(InvalidInputError, match="Mean has no attribute 'reduction'"):
        sample_losses(make_net(Mean), torch.ones(2, 3), torch.ones(2))


def test_criterion_that_always_reduces_raises():
    net = make_net(Mean)
    net.criterion_.reduction = "mean"
    with pytest.raises(InvalidInputError, match=r"shape \(\) for 2 samples"):
        sample_losses(net, torch.ones(2, 3), torch.ones(2))
