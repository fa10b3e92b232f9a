"""Both parts of a mixed batch in one pass, with separate gradients."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sklearn_sharpbalance import ResNet18, SmallCNN
from sklearn_sharpbalance.data.batches import part_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph import split_pass
from sklearn_sharpbalance.engine.graph.cast_weights import CastWeights
from sklearn_sharpbalance.engine.graph.fused_norms import fuse_norms
from sklearn_sharpbalance.engine.graph.split_pass import SplitPass
from sklearn_sharpbalance.engine.graph.step import GraphedStep, _MemberStep
from sklearn_sharpbalance.members import (
    Segment,
    as_skorch_net,
    initial_state,
    member_net,
)
from sklearn_sharpbalance.members.pruning import pruned_member
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.optim import SAM, MomentumSAM


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


@torch.no_grad()
def perturb(module):
    for weight in module.parameters():
        weight.mul_(1.2).add_(0.05)


def keep(module):
    pass


def two_passes(module, x, y, weight, n_first, move):
    """Return the gradients of both parts by separate passes, the second part first."""
    found = []
    for part in (slice(n_first, None), slice(n_first)):
        module.zero_grad()
        losses = functional.cross_entropy(module(x[part]), y[part], reduction="none")
        (losses * weight[part]).sum().backward()
        found.append({n: p.grad.clone() for n, p in module.named_parameters()})
        move(module)
    return found[1], found[0]


@pytest.mark.parametrize(
    "kind", [AllLayers, lambda: ResNet18(width=4, n_classes=4), lambda: SmallCNN(3, 4)]
)
@pytest.mark.parametrize(("own_weights", "move"), [(False, keep), (True, perturb)])
def test_gradients_equal_those_of_two_passes(own_weights, move, kind):
    torch.manual_seed(0)
    module = kind().train()
    plain = copy.deepcopy(module)
    x, y, weight = torch.randn(11, 3, 16, 16), torch.arange(11) % 4, torch.rand(11)
    first, second = two_passes(plain, x, y, weight, n_first=7, move=move)
    split = SplitPass(fuse_norms(module), 7, own_weights)
    move(module)
    losses = functional.cross_entropy(split(x), y, reduction="none")
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


@pytest.mark.parametrize("cast", [False, True])
def test_weights_of_the_second_part_are_copied(cast):
    module = Chain()
    casts = CastWeights(module, "bf16" if cast else "float32")
    split = SplitPass(fuse_norms(module), 2, own_weights=True)
    perturb(module)
    casts.close()
    perturb(module)  # the optimizer's weights
    want = [weight.detach().clone() for weight in module.parameters()]
    casts.open()
    split.push(casts.owner_of)
    layers = split.module.modules()
    seconds = [w for m in layers for w in getattr(m, "seconds", {}).values()]
    dtypes = [w.dtype for w in module.parameters()]
    assert (torch.bfloat16 in dtypes) == cast
    for a, b, dtype in zip(seconds, want, dtypes, strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b.to(dtype))


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


def task(
    precision="float32",
    pruned=False,
    kind=ResNet18,
    sam=SAM,
    share=0.5,
    device="cpu",
):
    """Return work of few steps, because later steps amplify rounding errors.

    Momentum-SAM perturbs from the second step on.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=48)
    X = rng.integers(0, 120, size=(48, 3, 8, 8)) + 60 * y[:, None, None, None]
    X = X.astype(np.uint8) if kind is ResNet18 else X.astype(np.float32) / 64 - 2
    data = TrainingData(X, y, rng.random(48).astype(np.float32) + 0.5)
    options = {"module__width": 4} if kind is ResNet18 else {}
    net = as_skorch_net(kind, (3, 8, 8), 3, options)
    net = member_net(net, 3, sam=sam, device=device)
    masks = rng.random((2, 48)) < share
    sizes = part_sizes(masks, batch_size=48)
    settings = {"precision": precision, "pruned": pruned}
    phase = Segment(
        name="balanced",
        start=0,
        stop=1 if sam is SAM else 2,
        n_epochs=4,
        sizes=sizes,
        rho=(0.05, 0.2),
        lr_schedule=cosine,
        **settings,
    )
    states = [initial_state(net, i, seed) for i, seed in enumerate((11, 12))]
    if pruned:
        states = [pruned_member(state, 0.5, net) for state in states]
    return net, states, data, phase, masks


@pytest.mark.parametrize("kind", [Tied, Repeated])
def test_weights_used_twice_train_in_bf16(kind):
    """With one pass for each part, as in the skorch engine."""
    module = Repeated("inner") if kind is Repeated else Tied()
    work = task("bf16", kind=module)
    got, want = (e.train(*work) for e in (GraphEngine(), SkorchEngine()))
    for before, a, b in zip(work[1], got, want, strict=True):
        for key, value in b.module.items():
            change = (value - before.module[key]).double().norm()
            error = (a.module[key] - value).double().norm()
            assert error <= 0.05 * change, key


def test_member_with_a_hook_is_not_split(monkeypatch):
    """The split pass does not call the member's module itself."""
    work = task(kind=Chain)
    original, split = GraphedStep.__init__, []

    def hooked(self, sessions, *args):
        for session in sessions:
            session.net.module_.register_forward_hook(lambda m, args, out: 0 * out)
        original(self, sessions, *args)
        split.extend(member.split.module for member in self.members)

    monkeypatch.setattr(GraphedStep, "__init__", hooked)
    for state in GraphEngine().train(*work):
        assert state.history[-1]["train_loss"] == pytest.approx(np.log(3), rel=0.2)
    assert split == [None, None]


@pytest.fixture
def parts(monkeypatch):
    """Record the number of samples in each pass over both parts."""
    sizes = []
    original = _MemberStep._both_parts_of

    def counted(self, x):
        sizes.append(len(x))
        return original(self, x)

    monkeypatch.setattr(_MemberStep, "_both_parts_of", counted)
    return sizes


def change_and_error(before, got, want):
    """Yield the change of each tensor in training, and the error of it."""
    for key, value in want.module.items():
        change = (value - before.module[key]).double().norm()
        yield key, change, (got.module[key] - value).double().norm()


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
@pytest.mark.parametrize("sam", [SAM, MomentumSAM])
def test_members_equal_those_of_two_passes(
    sam, kind, precision, pruned, tol, monkeypatch, parts
):
    work = task(precision, pruned, kind, sam)
    _, states, _, phase, _ = work
    got = GraphEngine().train(*work)
    n_passes = 2 * phase.stop
    assert parts == [phase.sizes.sam + phase.sizes.normal] * n_passes
    monkeypatch.setattr(split_pass, "_split", lambda *args: None)
    references = [GraphEngine().train(*work)]
    if precision == "float32":
        references.append(SkorchEngine().train(*work))
    assert len(parts) == n_passes
    for want in references:
        for before, a, b in zip(states, got, want, strict=True):
            for key, change, error in change_and_error(before, a, b):
                assert error <= tol * change, key
                value = b.module[key]
                if pruned and value.ndim > 1:
                    assert torch.equal(a.module[key] == 0, value == 0)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_momentum_sam_copies_weights_only_for_two_parts(share, steps, parts):
    GraphEngine().train(*task(kind=Chain, sam=MomentumSAM, share=share))
    (step,) = steps
    together = share == 0.5
    assert len(parts) == (4 if together else 0)
    for member in step.members:
        assert (member.split.module is not None) == together
        assert member.split.own_weights


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_members_of_momentum_sam_equal_those_of_two_passes_on_a_gpu(
    precision, monkeypatch, parts
):
    work = task(precision, sam=MomentumSAM, device="cuda")
    got = GraphEngine().train(*work)
    assert parts
    monkeypatch.setattr(split_pass, "_split", lambda *args: None)
    want = GraphEngine().train(*work)
    for before, a, b in zip(work[1], got, want, strict=True):
        losses = [[row["train_loss"] for row in state.history] for state in (a, b)]
        rtol = 1e-3 if precision == "float32" else 0.05
        np.testing.assert_allclose(*losses, rtol=rtol)
        for key, change, error in change_and_error(before, a, b):
            # In bf16 rounding dominates the gradients of so small a network.
            assert precision == "bf16" or error <= 0.02 * change, key
