"""Sparse members: which tensors are pruned and which are not."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.skorch_engine import train_member
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
    restore,
)
from sklearn_sharpbalance.members.weights import (
    WeightAveraging,
    prune_by_magnitude,
    pruned_member,
)
from sklearn_sharpbalance.optim import SAM
from tests.members.cases import segment
from tests.members.test_averaging_and_pruning import sparsity


class Parts(nn.Module):
    """Trained, frozen and unused matrices, and a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.linspace(-1, 1, 40).reshape(5, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 4)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        """Logits (N, 3)."""
        return self.last(torch.relu(self.frozen(self.first(x) + x @ self.codes)))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = (
            nn.Linear(5, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 3),
        )
        self.again.weight = self.first.weight

    def forward(self, x):
        """Logits (N, 3)."""
        return self.last(self.again(torch.relu(self.first(x))))


def make_net(module, nested=None):
    net = as_skorch_net(module, (5,), 3, nested)
    settings = {"lr": 0.1, "batch_size": 16}
    return member_net(net, 3, sam=SAM, device="cpu", settings=settings)


def train(net, state, start, stop, *, pruned, averaging=None):
    rng = np.random.default_rng(0)
    data = TrainingData(rng.normal(size=(32, 5)).astype("f4"), np.arange(32) % 3)
    mask = np.arange(32) % 2 == 0
    phase = segment(
        stop,
        start=start,
        n_epochs=4,
        sizes=batch_sizes(mask[None], 16),
        pruned=pruned,
        averaging=averaging,
    )
    return train_member(net, state, data, phase, mask)


def n_zeros(state, *names):
    return sum((state[f"module.{name}.weight"] == 0).sum().item() for name in names)


def test_buffers_and_frozen_weights_are_not_pruned():
    net = make_net(Parts)
    before = initial_state(net, 0, seed=3)
    after = pruned_member(before, 0.25, net)
    for name in ("module.codes", "module.frozen.weight", "module.last.bias"):
        assert after.module[name].equal(before.module[name])
    assert n_zeros(after.module, "unused", "first", "last") == (32 + 40 + 24) // 4
    assert sparsity(restore(net, after)) == 0.25


def test_pruned_members_with_unused_weights_are_trained():
    net = make_net(Parts)
    state = pruned_member(initial_state(net, 0, seed=3), 0.5, net)
    trained = train(net, state, 0, 2, pruned=True)
    for name, value in trained.module.items():
        moved = not value.equal(state.module[name])
        assert moved == name.startswith(("module.first", "module.last")), name
    for name in ("unused", "first", "last"):
        zeros = [s.module[f"module.{name}.weight"] == 0 for s in (state, trained)]
        assert zeros[0].equal(zeros[1])


class NoBiases(nn.Sequential):
    def __init__(self):
        layers = nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)
        super().__init__(*layers)


def test_optimizer_that_mixes_weights_keeps_zeros():
    net = make_net(NoBiases, {"optimizer": torch.optim.Muon})
    state = pruned_member(initial_state(net, 0, seed=3), 0.5, net)
    trained = train(net, state, 0, 2, pruned=True)
    for name, before in state.module.items():
        after = trained.module[name]
        assert (after == 0).equal(before == 0)
        assert not after.equal(before)


def test_shared_weight_is_pruned_and_counted_once():
    net = make_net(Tied)
    state = pruned_member(initial_state(net, 0, seed=3), 0.5, net)
    assert n_zeros(state.module, "first", "last") == (25 + 15) // 2
    assert state.module["module.again.weight"].equal(
        state.module["module.first.weight"]
    )
    assert sparsity(restore(net, state)) == 0.5


def test_average_restarts_with_the_pruned_weights():
    net, every = make_net(Tied), WeightAveraging(start=0.0)
    dense = train(
        net, initial_state(net, 0, seed=3), 0, 2, pruned=False, averaging=every
    )
    assert dense.extra["average"]["count"] == 2
    pruned = pruned_member(dense, 0.5, net)
    assert "average" in dense.extra  # the given state is not changed
    one = train(net, pruned, 2, 3, pruned=True)
    both = train(net, one, 3, 4, pruned=True)
    got = train(net, pruned, 2, 4, pruned=True, averaging=every).extra["average"]
    assert got["count"] == 2
    for name, value in got["weights"].items():
        want = (one.module[name].double() + both.module[name].double()) / 2
        torch.testing.assert_close(value.double(), want, atol=1e-6, rtol=1e-5)
    assert sparsity(restore(net, pruned)) == 0.5
    assert n_zeros(got["weights"], "first", "last") == (25 + 15) // 2


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_share_of_equal_weights_is_pruned(share):
    signs = torch.ones(4, 5)
    signs[::2] = -1
    state = {"module.a": 0.5 * signs, "module.b": torch.full((4, 5), 0.5)}
    pruned = prune_by_magnitude(state, share)
    n_zeros = sum(int((value == 0).sum()) for value in pruned.values())
    assert n_zeros == round(40 * share)
    for name, value in pruned.items():
        assert value[value != 0].equal(state[name][value != 0])
