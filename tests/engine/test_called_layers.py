"""Modules that only call their layers can be stacked; others cannot."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.engine.stacked.network import (
    called_layers,
    stackable_layers,
    stacking_obstacle,
)

y = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
SMALL = {"n_estimators": 2, "max_epochs": 3, "device": "cpu", "random_state": 0}


class Wrapper(nn.Module):
    """A typical user-defined module."""

    def __init__(self, width=8):
        super().__init__()
        self.width = width
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x):
        x = self.act(self.first(x))
        return self.last(x)


class Doubles(Wrapper):
    def forward(self, x):
        return self.net(2 * x)


class Twice(Wrapper):
    def forward(self, x):
        self.net(x)
        return self.net(x)


class Softmax(Wrapper):
    def forward(self, x):
        return self.net(x).softmax(-1)


class Functional(Layers):
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Counts(Wrapper):
    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        return self.net(x)


class Records(Wrapper):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return self.net(x)


class Drops(Layers):
    """Skips layers at random."""

    def forward(self, x):
        x = self.first(x)
        if random.random() < 0.99:
            x = self.act(x)
        return self.last(x)


class DropsByTorch(Layers):
    def forward(self, x):
        x = self.first(x)
        if torch.rand(()) < 0.99:
            x = self.act(x)
        return self.last(x)


class Trains(Layers):
    """Another chain in evaluation mode."""

    def forward(self, x):
        x = self.first(x)
        return self.last(self.act(x) if self.training else x)


class Weighted(Wrapper):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Buffered(Wrapper):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


class TwoInputs(Wrapper):
    def forward(self, x, mask):
        return self.net(x)


class OwnCall(Wrapper):
    def __call__(self, x):
        return -super().__call__(x)


NOT_CHAINS = [
    Buffered,
    Counts,
    Doubles,
    Drops,
    DropsByTorch,
    Functional,
    OwnCall,
    Records,
    Softmax,
    Trains,
    Twice,
    TwoInputs,
    Weighted,
]


@pytest.mark.parametrize(
    ("module", "names"),
    [(Wrapper, ["net.0", "net.1", "net.2"]), (Layers, ["first", "act", "last"])],
)
def test_layers_are_found_in_the_order_of_their_calls(module, names):
    module = module()
    layers = stackable_layers(module)
    assert [name for name, _ in layers] == names
    assert all(layer is module.get_submodule(name) for name, layer in layers)


@pytest.mark.parametrize("module", NOT_CHAINS)
def test_other_modules_are_not_chains(module):
    module = module()
    before = torch.get_rng_state(), random.getstate()
    assert called_layers(module) is None
    assert stackable_layers(module) is None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert getattr(module, "n_calls", 0) == 0
    assert getattr(module, "seen", []) == []


def test_hooks_of_a_wrapper_are_respected():
    module = Wrapper()
    module.register_forward_hook(lambda module, args, output: -output)
    assert stackable_layers(module) is None


def test_weights_keep_their_order_in_the_optimizer():
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 3), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    class Unused(Wrapper):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(2, 2)

    assert "in another order" in stacking_obstacle(Reversed())
    assert "in another order" in stacking_obstacle(Unused())


@pytest.mark.parametrize("module", [Wrapper, Layers])
def test_stacked_wrapper_trains_the_same_members(module):
    stacked = DeepEnsembleClassifier(module, **SMALL).fit(X, y)
    one_by_one = DeepEnsembleClassifier(module, engine="skorch", **SMALL).fit(X, y)
    assert stacked.engine_.name == "stacked"
    np.testing.assert_allclose(
        stacked.predict_proba(X), one_by_one.predict_proba(X), atol=1e-5
    )
    for one, other in zip(stacked.estimators_, one_by_one.estimators_):
        for a, b in zip(one.module_.parameters(), other.module_.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_stacked_wrapper_predicts_like_its_modules():
    clf = DeepEnsembleClassifier(Wrapper, **SMALL).fit(X, y)
    logits = [net.forward(X).detach().numpy() for net in clf.estimators_]
    np.testing.assert_allclose(clf.member_decision_function(X), logits, atol=1e-5)


def test_members_with_other_calls_predict_one_by_one():
    """A flag changes the calls, which the structure of the module does not show."""

    class Flagged(Layers):
        def __init__(self, squash=True):
            super().__init__()
            self.squash = squash

        def forward(self, x):
            x = self.first(x)
            return self.last(self.act(x) if self.squash else x)

    apart = [{"module__squash": True}, {"module__squash": False}]
    clf = DeepEnsembleClassifier(Flagged, member_params=apart, **SMALL).fit(X, y)
    logits = [net.forward(X).detach().numpy() for net in clf.estimators_]
    np.testing.assert_allclose(clf.member_decision_function(X), logits, atol=1e-5)


def test_joint_training_stacks_a_wrapper():
    clf = DiversifiedEnsembleClassifier(Wrapper, **SMALL).fit(X, y)
    assert clf.engine_.name == "stacked"
