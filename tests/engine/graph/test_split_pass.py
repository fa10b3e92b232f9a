"""Both parts of a mixed batch in one pass, with separate gradients."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sklearn_sharpbalance import ResNet18, SmallCNN
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph import split_pass
from sklearn_sharpbalance.engine.graph.fused_norms import fuse_norms
from sklearn_sharpbalance.engine.graph.split_pass import SplitPass
from sklearn_sharpbalance.engine.graph.step import _MemberStep
from sklearn_sharpbalance.members import (
    as_skorch_net,
    member_net,
)
from sklearn_sharpbalance.members.weights import pruned_member
from sklearn_sharpbalance.optim import SAM
from tests.engine.cases import segment, start


class AllLayers(nn.Module):
    """Each kind of layer and call that can be split."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2, bias=False)
        self.norm2 = nn.BatchNorm2d(8, track_running_stats=False)
        self.body = nn.Sequential(nn.MaxPool2d(2), nn.GELU(), nn.Identity())
        self.head = nn.Linear(8, 5, bias=False)
        self.last = nn.Linear(5, 4)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = self.body(self.norm2(self.grouped(x)) * 2)
        x = torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1)
        return self.last(self.head(x).flatten(start_dim=1))


def two_passes(module, x, y, weight, n_first):
    """Return the gradients of both parts by separate passes, the second part first."""
    found = []
    for part in (slice(n_first, None), slice(n_first)):
        module.zero_grad()
        losses = functional.cross_entropy(module(x[part]), y[part], reduction="none")
        (losses * weight[part]).sum().backward()
        found.append({n: p.grad.clone() for n, p in module.named_parameters()})
    return found[1], found[0]


@pytest.mark.parametrize(
    "kind", [AllLayers, lambda: ResNet18(width=4, n_classes=4), lambda: SmallCNN(3, 4)]
)
def test_gradients_equal_those_of_two_passes(kind):
    torch.manual_seed(0)
    module = kind().train()
    plain = copy.deepcopy(module)
    x, y, weight = torch.randn(11, 3, 16, 16), torch.arange(11) % 4, torch.rand(11)
    first, second = two_passes(plain, x, y, weight, n_first=7)
    split = SplitPass(fuse_norms(module), 7)
    losses = functional.cross_entropy(split.module(x), y, reduction="none")
    (losses * weight).sum().backward()
    names = {id(p): name for name, p in module.named_parameters()}
    others = split.take_gradients(lambda weight: weight)
    assert {names[id(p)] for p, _ in others} == set(second)
    for parameter, grad in others:
        torch.testing.assert_close(grad, second[names[id(parameter)]])
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, first[name])
    for (name, a), b in zip(plain.named_buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    assert split.take_gradients(lambda weight: weight) == []


def wrapped(layer=None, forward=None):
    """Return a network with BatchNorm and an operation that cannot be split."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.BatchNorm2d(4), layer

        def forward(self, x):
            x = self.norm(x)
            return self.layer(x) if layer is not None else forward(x)

    return Net()


@pytest.mark.parametrize(
    "module",
    [
        wrapped(nn.utils.weight_norm(nn.Conv2d(4, 4, 1))),
        wrapped(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))),
        wrapped(nn.LayerNorm((4, 4, 4))),
        wrapped(nn.BatchNorm2d(4, affine=False)),
        wrapped(nn.InstanceNorm2d(4)),
        wrapped(nn.Conv2d(4, 4, 3, padding="same")),
        wrapped(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        wrapped(nn.ConvTranspose2d(4, 4, 3)),
        wrapped(nn.Flatten(0)),
        wrapped(nn.PReLU()),
        wrapped(forward=lambda x: x - x.mean(0)),
        wrapped(forward=lambda x: x.flatten()),
        wrapped(forward=torch.flatten),
        wrapped(forward=lambda x: x.roll(1, 0)),
        wrapped(forward=lambda x: functional.batch_norm(x, None, None, training=True)),
    ],
)
def test_operations_that_mix_samples_are_not_split(module):
    fused = fuse_norms(module)
    assert fused is not None
    assert SplitPass(fused, 2).module is None


class Chain(nn.Module):
    """One of each layer that is split, and one that need not be."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.gelu, self.pool = nn.GELU(), nn.AdaptiveAvgPool2d(1)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.pool(self.gelu(self.norm(self.conv(x)))).flatten(1)
        return self.head(self.inner(x))


@pytest.mark.parametrize("kind", ["forward", "pre", "after", "backward"])
@pytest.mark.parametrize("name", ["conv", "norm", "gelu", "inner", "head"])
def test_hooked_layers_are_not_split(name, kind):
    module = Chain()
    assert SplitPass(fuse_norms(module), 2).module is not None
    layer = getattr(module, name)
    if kind == "forward":
        layer.forward = lambda x: x
    elif kind == "backward":
        layer.register_full_backward_hook(lambda layer, grads, _: None)
    elif kind == "pre":
        layer.register_forward_pre_hook(lambda layer, args: None)
    else:
        layer.register_forward_hook(lambda layer, args, output: None)
    assert SplitPass(fuse_norms(module), 2).module is None


class ByKeyword(Chain):
    """Names the input of a layer."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        if self.name == "conv":
            x = self.conv(input=x)
        x = self.pool(self.norm(x)).flatten(1)
        return self.head(input=x) if self.name == "head" else self.head(x)


@pytest.mark.parametrize("name", ["conv", "head"])
def test_layers_that_are_called_by_keyword_are_not_split(name):
    assert SplitPass(fuse_norms(ByKeyword(name)), 2).module is None


class Repeated(Chain):
    """Calls a layer twice."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        x = self.norm(self.norm(self.conv(x)) if self.name == "norm" else self.conv(x))
        x = self.inner(self.pool(x).flatten(1))
        return self.head(self.inner(x) if self.name == "inner" else x)


class Tied(Chain):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.second.weight = self.inner.weight

    def forward(self, x):
        x = self.pool(self.gelu(self.norm(self.conv(x)))).flatten(1)
        return self.head(self.second(self.inner(x)))


@pytest.mark.parametrize(
    ("module", "splits"),
    [
        (Repeated(""), True),
        (Repeated("norm"), False),
        (Repeated("inner"), False),
        (Tied(), False),
    ],
)
def test_weights_used_twice_are_not_split(module, splits):
    assert (SplitPass(fuse_norms(module), 2).module is not None) == splits


class UnusedLayers(Chain):
    """Layers without gradients, one of which shares its weight."""

    def __init__(self):
        super().__init__()
        self.inner.requires_grad_(False)
        self.idle, self.unused = nn.Conv2d(3, 4, 1), nn.Linear(4, 4)
        self.idle.weight = self.conv.weight


class Overwriting(Chain):
    """The first layer changes its input in place."""

    def __init__(self):
        super().__init__()
        self.first = nn.LeakyReLU(0.5, inplace=True)

    def forward(self, x):
        return super().forward(self.first(x))


def task(precision="float32", pruned=False, kind=ResNet18):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=48)
    X = rng.integers(0, 120, size=(48, 3, 8, 8)) + 60 * y[:, None, None, None]
    X = X.astype(np.uint8) if kind is ResNet18 else X.astype(np.float32) / 64 - 2
    data = TrainingData(X, y, rng.random(48).astype(np.float32) + 0.5)
    options = {"module__width": 4} if kind is ResNet18 else {}
    net = as_skorch_net(kind, (3, 8, 8), 3, options)
    net = member_net(net, 3, sam=SAM, device="cpu")
    masks = rng.random((2, 48)) < 0.5
    # One step: later steps amplify rounding errors.
    options = {"batch_size": 48, "precision": precision, "pruned": pruned}
    phase = segment(masks, 0, 1, n_epochs=4, **options)
    states = start(net)
    if pruned:
        states = [pruned_member(state, 0.5, net) for state in states]
    return net, states, data, phase, masks


def train(engine, net, states, data, phase, masks):
    return engine().open(net, states, data).train(phase, masks)


@pytest.mark.parametrize(
    ("kind", "precision", "pruned", "tol"),
    [
        (ResNet18, "float32", False, 1e-4),
        pytest.param(ResNet18, "float32", True, 1e-4, marks=pytest.mark.slow),
        pytest.param(ResNet18, "bf16", False, 1e-2, marks=pytest.mark.slow),
        (UnusedLayers, "float32", True, 1e-4),
        (UnusedLayers, "bf16", False, 1e-2),
        (Overwriting, "float32", False, 1e-4),
    ],
)
def test_members_equal_those_of_two_passes(kind, precision, pruned, tol, monkeypatch):
    parts = []
    original = _MemberStep._both_parts_of

    def counted(self, x):
        parts.append(len(x))
        return original(self, x)

    monkeypatch.setattr(_MemberStep, "_both_parts_of", counted)
    work = task(precision, pruned, kind)
    _, states, _, phase, _ = work
    got = train(GraphEngine, *work)
    assert parts == [phase.sizes.sam + phase.sizes.normal] * 2
    monkeypatch.setattr(split_pass, "_split", lambda fused, n_first: None)
    references = [train(GraphEngine, *work)]
    if precision == "float32":
        references.append(train(SkorchEngine, *work))
    assert len(parts) == 2
    for want in references:
        for before, a, b in zip(states, got, want, strict=True):
            for key, value in b.module.items():
                change = (value - before.module[key]).double().norm()
                error = (a.module[key] - value).double().norm()
                assert error <= tol * change, key
                if pruned and value.ndim > 1:
                    assert torch.equal(a.module[key] == 0, value == 0)
