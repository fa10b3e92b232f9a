"""Modules that only call their layers can be stacked; others cannot."""

import random

import pytest
import torch
from torch import nn

from sklearn_sharpbalance.engine.stacked.network import (
    called_layers,
    stackable_layers,
    stacking_obstacle,
)


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


def counts(self, x):
    self.n_calls = 1
    return self.net(x)


def skips_at_random(self, x):
    return self.net(x if random.random() < 0.99 else 2 * x)


def weighted():
    module = Wrapper()
    module.scale = nn.Parameter(torch.ones(()))
    return module


def buffered():
    module = Wrapper()
    module.register_buffer("count", torch.zeros(()))
    return module


def with_forward(forward):
    """Return a function that makes a Wrapper with another ``forward``."""
    return type("Other", (Wrapper,), {"forward": forward})


class OwnCall(Wrapper):
    def __call__(self, x):
        return -super().__call__(x)


NOT_CHAINS = {
    "buffered": buffered,
    "calls twice": with_forward(lambda self, x: self.net(x) and self.net(x)),
    "counts": with_forward(counts),
    "doubles": with_forward(lambda self, x: self.net(2 * x)),
    "functional": with_forward(lambda self, x: torch.relu(self.net(x))),
    "own call": OwnCall,
    "random": with_forward(skips_at_random),
    "other mode": with_forward(lambda self, x: self.net(x) if self.training else x),
    "two inputs": with_forward(lambda self, x, mask: self.net(x)),
    "weighted": weighted,
}


@pytest.mark.parametrize("name", NOT_CHAINS)
def test_other_modules_are_not_chains(name):
    module = NOT_CHAINS[name]()
    before = torch.get_rng_state(), random.getstate()
    assert called_layers(module) is None
    assert stackable_layers(module) is None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert not hasattr(module, "n_calls")


@pytest.mark.parametrize(
    ("module", "names"),
    [(Wrapper, ["net.0", "net.1", "net.2"]), (Layers, ["first", "act", "last"])],
)
def test_layers_are_found_in_the_order_of_their_calls(module, names):
    module = module()
    layers = stackable_layers(module)
    assert [name for name, _ in layers] == names
    assert all(layer is module.get_submodule(name) for name, layer in layers)


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
