"""State of a member between phases: plain values that are restored exactly."""

import pickle

import pytest
import torch
from torch import nn

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.exceptions import ModelFileError
from sklearn_sharpbalance.members import as_skorch_net, initial_state, member_net
from sklearn_sharpbalance.members import restore as restore_member
from sklearn_sharpbalance.members.state import capture
from sklearn_sharpbalance.optim import SAM

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


@pytest.fixture
def net():
    net = as_skorch_net(MLP, (4,), 3, {"module__hidden": (5,)})
    return member_net(net, 3, sam=SAM, device="cpu")


def same(one, other):
    return all(one[key].equal(other[key]) for key in one) and len(one) == len(other)


class Shuffled(nn.Module):
    """Draw values that are not in the state dict."""

    def __init__(self, n_features=4, n_classes=3):
        super().__init__()
        self.order = torch.randperm(n_features).tolist()
        self.head = nn.Linear(n_features, n_classes)

    def forward(self, x):
        return self.head(x[:, self.order])


def test_other_draws_of_a_module_depend_on_the_seed():
    net = as_skorch_net(Shuffled, (4,), 3)
    net = member_net(net, 3, sam=SAM, device="cpu")
    orders = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(20):
            torch.manual_seed(seed)
            first = initial_state(net, 0, seed=7)
            orders.append(restore_member(net, first).module_.module.order)
    assert all(order == orders[0] for order in orders)


def test_no_generator_of_another_device_is_seeded(net, monkeypatch):
    """torch.manual_seed would seed those of all GPUs."""
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    initial_state(net, 0, seed=7)
    assert seeds == []


def take_steps(net, n=3):
    for _ in range(n):
        net.optimizer_.zero_grad()
        nn.functional.cross_entropy(net.module_(X), Y).backward()
        net.optimizer_.descend()


class Remembering(nn.Module):
    """Random values and counts in non-persistent buffers."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("drawn", torch.randn(4), persistent=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, X):
        self.count += 1
        if self.count == 2:  # a lazily created cache
            self.register_buffer("late", X.mean(0), persistent=False)
        return self.head(X * self.drawn)


def test_non_persistent_buffers_are_kept_between_phases():
    net = member_net(as_skorch_net(Remembering, (4,), 3), 3, sam=SAM, device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        drawn = Remembering().drawn
    state = initial_state(net, 0, seed=7)
    for phase in (1, 2):
        live = restore_member(net, state)
        take_steps(live, 3)
        state = pickle.loads(pickle.dumps(capture(live, state)))
        inner = restore_member(net, state).module_.module
        assert inner.count == 3 * phase
        assert inner.drawn.equal(drawn)
        assert inner.late.equal(X.mean(0))
        assert not {"drawn", "count", "late"} & set(inner.state_dict())


class Versioned(nn.Linear):
    """Load weights of known versions only, like torchvision's MNASNet."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *args):
        assert metadata.get("version") in (1, 2)
        super()._load_from_state_dict(state, prefix, metadata, *args)


def test_versions_of_layers_are_kept():
    net = as_skorch_net(Versioned, (4,), 3)
    net = member_net(net, 3, sam=SAM, device="cpu")
    state = pickle.loads(pickle.dumps(initial_state(net, 0, seed=7)))
    assert same(restore_member(net, state).module_.state_dict(), state.module)
    del state.module["module.bias"]
    with pytest.raises(ModelFileError, match=r"Missing key[^$]*module\.bias"):
        restore_member(net, state)


class Counting(nn.CrossEntropyLoss):
    """Count calls in a persistent and a non-persistent buffer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.register_buffer("saved", torch.zeros(()))
        self.register_buffer("loose", torch.zeros(()), persistent=False)

    def forward(self, input, target):
        self.saved += 1
        self.loose += 1
        return super().forward(input, target)


def test_buffers_of_a_criterion_are_kept_between_phases():
    net = as_skorch_net(MLP, (4,), 3, {"criterion": Counting})
    net = member_net(net, 3, sam=SAM, device="cpu")
    state = initial_state(net, 0, seed=7)
    for phase in (1, 2):
        live = restore_member(net, state)
        live.criterion_(live.module_(X), Y)
        assert state.extra["criterion"]["saved"] == phase - 1
        state = pickle.loads(pickle.dumps(capture(live, state)))
        criterion = restore_member(net, state).criterion_
        assert criterion.saved == criterion.loose == phase
        assert set(criterion.state_dict()) == {"saved"}
