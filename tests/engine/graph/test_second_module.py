"""Both parts of a step of Momentum-SAM at the same time; on a CPU one by one."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from sklearn_sharpbalance import ResNet18
from sklearn_sharpbalance.data.batches import part_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph import step as graph_step
from sklearn_sharpbalance.engine.graph.second_module import (
    SecondModule,
    second_module,
)
from sklearn_sharpbalance.members import (
    Segment,
    as_skorch_net,
    initial_state,
    member_net,
)
from sklearn_sharpbalance.members.module import MemberModule
from sklearn_sharpbalance.members.pruning import pruned_member
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.optim import SAM, MomentumSAM

CPU = torch.device("cpu")


class Network(nn.Module):
    """BatchNorms with two momenta, a frozen, an unused and a tied weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6, momentum=0.3),
            nn.Tanh(),
            nn.Conv2d(6, 6, 1),
            nn.BatchNorm2d(6),
            nn.Tanh(),
            nn.BatchNorm2d(6, track_running_stats=False),
        )
        self.body[3].bias.requires_grad_(False)
        self.inner, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        x = self.body(x).mean((2, 3))
        return self.head(self.again(torch.tanh(self.inner(x))))


def train(
    engine,
    *,
    kind=Network,
    sam=MomentumSAM,
    precision="float32",
    pruned=False,
    device="cpu",
    share=0.5,
    n_epochs=2,
):
    """Return the states after two segments of mixed batches with sample weights."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=40)
    X = rng.normal(size=(40, 1, 8, 8)) + y[:, None, None, None]
    weights = rng.random(40).astype(np.float32) + 0.5
    data = TrainingData(X.astype(np.float32), y, weights)
    options = {"module__width": 4} if kind is ResNet18 else {}
    net = as_skorch_net(kind, (1, 8, 8), 3, options)
    settings = {"lr": 0.05}
    net = member_net(net, 3, sam=sam, device=device, settings=settings)
    states = [initial_state(net, i, seed) for i, seed in enumerate((11, 12))]
    if pruned:
        states = [pruned_member(state, 0.5, net) for state in states]
    masks = rng.random((2, 40)) < share
    for start in (0, n_epochs):
        segment = Segment(
            name="balanced",
            start=start,
            stop=start + n_epochs,
            n_epochs=2 * n_epochs,
            sizes=part_sizes(masks, batch_size=16),
            rho=(0.2, 0.5),
            lr_schedule=cosine,
            precision=precision,
            pruned=pruned,
        )
        states = engine.train(net, states, data, segment, masks)
    return states


def assert_same(got, want, tol):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.module, b.module, atol=tol, rtol=tol)
        for key, entries in b.optimizer["state"].items():
            own = a.optimizer["state"][key]
            torch.testing.assert_close(own, entries, atol=tol, rtol=tol)
        losses = [[row["train_loss"] for row in state.history] for state in (a, b)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=max(tol, 1e-4))


@pytest.fixture
def passes(monkeypatch):
    """Count the passes of copies."""
    counts = []
    original = SecondModule.start

    def counted(self, loss_of):
        counts.append(self)
        return original(self, loss_of)

    monkeypatch.setattr(SecondModule, "start", counted)
    return counts


@pytest.mark.parametrize("pruned", [False, True])
def test_members_equal_those_of_skorch(pruned, passes):
    """With weights, running statistics, counters, momentum and losses."""
    got = train(GraphEngine(), pruned=pruned)
    assert len(passes) == 2 * 4 * 3  # members, epochs, steps
    want = train(SkorchEngine(), pruned=pruned)
    assert_same(got, want, 1e-5)
    counters = [k for k in want[0].module if k.endswith("num_batches_tracked")]
    assert [got[0].module[key].item() for key in counters] == [2 * 4 * 3] * 2
    if pruned:
        weight = "module.body.3.weight"
        assert torch.equal(got[0].module[weight] == 0, want[0].module[weight] == 0)
        assert (got[0].module[weight] == 0).float().mean() > 0.2


@pytest.mark.parametrize("kind", [Network, ResNet18])
def test_members_in_bf16_equal_those_of_one_pass_after_the_other(
    kind, passes, monkeypatch
):
    got = train(GraphEngine(), kind=kind, precision="bf16", n_epochs=1)
    assert passes
    n_passes = len(passes)
    monkeypatch.setattr(graph_step, "second_module", lambda *args: None)
    want = train(GraphEngine(), kind=kind, precision="bf16", n_epochs=1)
    assert len(passes) == n_passes
    assert_same(got, want, 1e-3)


@pytest.mark.parametrize(("sam", "share"), [(SAM, 0.5), (MomentumSAM, 2.0)])
def test_module_is_only_copied_for_parts_at_different_weights(sam, share, passes):
    train(GraphEngine(), sam=sam, share=share, n_epochs=1)
    assert not passes


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(torch.relu(self.norm(x)))


class Branching(Twice):
    def forward(self, x):
        return self.norm(x) if x.sum() > 0 else self.norm(-x)


class OwnNorm(nn.BatchNorm2d):
    pass


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.lock = threading.Lock()


def hooked():
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda layer, args, output: -output)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        Branching,
        Locked,
        hooked,
        lambda: nn.Sequential(OwnNorm(3), nn.BatchNorm2d(3)),
        lambda: nn.BatchNorm2d(3, momentum=None),
        lambda: nn.InstanceNorm2d(3, track_running_stats=True),
        lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
    ],
)
def test_modules_whose_copy_could_differ_have_none(make):
    assert second_module(MemberModule(make), "float32", CPU) is None


@pytest.mark.parametrize(
    "make", [Network, lambda: nn.Linear(3, 3), lambda: nn.InstanceNorm2d(3)]
)
def test_other_modules_have_a_copy(make):
    assert second_module(MemberModule(make), "float32", CPU) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_parallel_passes_on_a_gpu_equal_those_of_one_stream(
    precision, passes, monkeypatch
):
    options = {"kind": ResNet18, "device": "cuda", "precision": precision}
    got = train(GraphEngine(), n_epochs=1, **options)
    assert passes
    monkeypatch.setattr(graph_step, "second_module", lambda *args: None)
    want = train(GraphEngine(), n_epochs=1, **options)
    began = train(SkorchEngine(), n_epochs=0, kind=ResNet18)
    for a, b, c in zip(got, want, began, strict=True):
        for key, value in b.module.items():
            change = (value.cpu() - c.module[key]).double().norm()
            error = (a.module[key] - value).double().norm()
            assert error.item() <= 0.1 * change.item() + 1e-6, key


@pytest.mark.gpu
def test_captured_copy_reads_current_weights_on_a_gpu():
    """Replays of one graph give the same result as the skorch engine."""
    got = train(GraphEngine(), device="cuda")
    want = train(SkorchEngine())
    assert_same(got, want, 5e-3)
