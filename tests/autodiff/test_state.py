"""The state of a module is restored after its use."""

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.autodiff import per_sample_squared_norms
from tests import reference
from tests.autodiff.traps import BY_OTHERS
from tests.autodiff.zoo import build, cross_entropy

METHODS = ["auto", "vmap", "loop"]


@pytest.mark.parametrize("method", ["auto", "vmap"])
@pytest.mark.parametrize("name", ["two_names", "tied"])
def test_parameters_with_two_names_are_not_replaced(name, method):
    module, X, y = build(BY_OTHERS[name])
    before = dict(module.named_parameters(remove_duplicate=False))
    per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    after = dict(module.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[key] is p for key, p in before.items())


class Scaled(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        return self.scale * self.module(x)


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_that_is_a_module_adds_no_parameters(method):
    module, X, y = build(BY_OTHERS["temperature"])
    wrapper = Scaled(module)
    names = [f"module.{name}" for name, _ in module.named_parameters()]
    expected = reference.per_sample_squared_norms(wrapper, cross_entropy, X, y, names)
    parameters = list(wrapper.parameters())
    actual = per_sample_squared_norms(
        module, cross_entropy, X, y, forward=wrapper, method=method
    )
    torch.testing.assert_close(actual, expected)
    assert all(a is b for a, b in zip(parameters, wrapper.parameters(), strict=True))
