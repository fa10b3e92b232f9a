"""The state of a module is restored after its use."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from sklearn_sharpbalance.autodiff import evaluation_mode, per_sample_squared_norms
from tests import reference
from tests.autodiff.traps import BY_OTHERS
from tests.autodiff.zoo import CLASSES, build, cross_entropy, tabular, with_head

METHODS = ["auto", "vmap", "loop"]


def pruned(layer):
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


def by_hook(reparametrise):
    def make(layer):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # deprecated in favour of parametrizations
            return reparametrise(layer)

    return make


COMPUTED_WEIGHTS = {
    "pruned": pruned,
    "weight_norm": by_hook(nn.utils.weight_norm),
    "spectral_norm": by_hook(nn.utils.spectral_norm),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", COMPUTED_WEIGHTS)
def test_a_weight_that_a_hook_computes_is_restored(kind, method):
    """It is an attribute that each forward pass replaces."""
    module, X, y = build(
        (lambda: with_head(COMPUTED_WEIGHTS[kind](nn.Linear(6, 6))), tabular)
    )
    module.eval()
    with torch.no_grad():
        module(X)
    weight = module[0].weight
    values = weight.clone()
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    actual = per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    torch.testing.assert_close(actual, expected)
    assert module[0].weight is weight
    assert torch.equal(weight, values)
    copy.deepcopy(module)
    torch.save(module, io.BytesIO())


class Remembers(nn.Module):
    """Store the input as an attribute and as a buffer, and its length."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))  # has no rule
        self.register_buffer("last", None)
        self.length = 0

    def forward(self, x):
        self.features = self.fc(x)
        self.last = self.features.detach().clone()
        self.length = len(x)
        return self.scale * self.features


@pytest.mark.parametrize("method", METHODS)
def test_tensors_that_a_module_stores_are_restored(method):
    module, X, y = build((Remembers, tabular))
    per_sample_squared_norms(module, cross_entropy, X[:3], y[:3], method=method)
    assert len(module.last) == len(module.features) == module.length == len(X)
    pickle.dumps(module.last)
    fresh = Remembers().double()
    per_sample_squared_norms(fresh, cross_entropy, X, y, method=method)
    assert fresh.last is None
    assert fresh.length == 0
    assert not hasattr(fresh, "features")
    pickle.dumps(fresh)


def test_tensors_that_a_module_stores_are_restored_after_an_error():
    module, X, _ = build((Remembers, tabular))
    features = module.features

    def failing():
        with evaluation_mode(module):
            module(X[:2])
            assert len(module.features) == 2
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        failing()
    assert module.features is features
    assert module.training


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
