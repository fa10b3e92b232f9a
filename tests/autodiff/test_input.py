"""Samples, losses and settings of gradient norms and the Hessian."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sklearn_sharpbalance.autodiff import HessianOperator, per_sample_squared_norms
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests import reference
from tests.autodiff.traps import BY_OTHERS
from tests.autodiff.zoo import BY_RULES, build, cross_entropy

METHODS = ["auto", "layer_rules", "vmap", "loop"]

each_method = pytest.mark.parametrize("method", METHODS)


def column(outputs, y):
    return cross_entropy(outputs, y)[:, None]


REDUCED = {
    "mean": (F.cross_entropy, r"shape \(\) for"),
    "column": (column, r"shape \(\d, 1\) for"),
}


@each_method
@pytest.mark.parametrize("kind", REDUCED)
def test_losses_must_be_one_per_sample(kind, method):
    module, X, y = build(BY_RULES["mlp"])
    loss_fn, message = REDUCED[kind]
    with pytest.raises(InvalidInputError, match=message + r".*reduction='none'"):
        per_sample_squared_norms(module, loss_fn, X, y, method=method)


@pytest.mark.parametrize("kind", REDUCED)
def test_losses_of_a_hessian_must_be_one_per_sample(kind):
    module, X, y = build(BY_RULES["mlp"])
    operator = HessianOperator(module, REDUCED[kind][0], X, y)
    with pytest.raises(InvalidInputError, match=REDUCED[kind][1]):
        operator @ torch.ones(operator.shape[0])


def test_invalid_input_does_not_try_the_next_method():
    module, X, y = build(BY_RULES["mlp"])
    calls = []

    def invalid_loss(outputs, y):
        calls.append(len(y))
        raise InvalidInputError("of the losses")

    with pytest.raises(InvalidInputError, match="of the losses"):
        per_sample_squared_norms(module, invalid_loss, X, y)
    assert len(calls) == 1


@each_method
@pytest.mark.parametrize("name", ["softmax_regression", "dict"])
def test_samples_may_require_a_gradient(name, method):
    module, X, y = build(BY_RULES[name])
    parts = list(X.values()) if isinstance(X, dict) else [X]
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    for part in parts:
        part.requires_grad_(part.is_floating_point())
    actual = per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    assert not actual.requires_grad
    torch.testing.assert_close(actual, expected)
    assert all(part.grad is None for part in parts)


@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
def test_losses_may_include_a_penalty_on_the_weights(method):
    module, X, y = build(BY_RULES["mlp"])

    def penalised(outputs, y):
        penalty = sum(p.square().sum() for p in module.parameters())
        return cross_entropy(outputs, y) + 0.3 * penalty

    gradients = reference.per_sample_gradients(module, cross_entropy, X, y)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    expected = (gradients + 0.6 * weights).square().sum(1)
    actual = per_sample_squared_norms(module, penalised, X, y, method=method)
    torch.testing.assert_close(actual, expected)


def test_vmap_raises_for_a_parameter_that_it_cannot_swap():
    module, X, y = build(BY_OTHERS["tied_by_list"])
    with pytest.raises(InvalidInputError, match="is not read from its module"):
        per_sample_squared_norms(module, cross_entropy, X, y, method="vmap")


class Deviations(nn.Module):
    """Differences between positions, which are almost equal in the test.

    The gradient is almost zero, but a sum of much larger terms.
    """

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(64, 64, bias=False)
        self.fc = nn.Linear(64, 3).requires_grad_(False)

    def forward(self, x):
        x = self.map(x)
        x = x - x.mean(1, keepdim=True)
        return self.fc(x.square().sum(1) + x.sum(1))


def test_rounding_gives_no_negative_squared_norm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, y = Deviations(), torch.randint(0, 3, (500,))
        X = torch.randn(500, 1, 64) + 1e-4 * torch.randn(500, 2, 64)
    norms = per_sample_squared_norms(module, cross_entropy, X, y, method="layer_rules")
    assert norms.min() >= 0
    assert norms.max() < 1e-9
    module.map.weight.data.fill_(torch.nan)
    norms = per_sample_squared_norms(module, cross_entropy, X, y, method="layer_rules")
    assert norms.isnan().all()
