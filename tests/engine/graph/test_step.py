"""What a captured step leaves behind, here without being captured."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.data.batches import part_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph.step import _count_on_device
from sklearn_sharpbalance.members import (
    Segment,
    as_skorch_net,
    initial_state,
    member_net,
)
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.optim import SAM

RNG = np.random.default_rng(0)
DATA = TrainingData(
    RNG.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
)
MASKS = RNG.random((2, 30)) < 0.5


class Norms(nn.Module):
    """A norm that counts, one that has a counter, and one that never trains."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.Tanh(),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.BatchNorm2d(4),
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))

    def train(self, mode=True):
        super().train(mode)
        self.body[-1].eval()
        return self


def train(
    engine,
    *,
    optimizer=None,
    device="cpu",
    n_phases=2,
    n_epochs=2,
    batch_size=8,
    precision="float32",
):
    """States after phases of so many epochs each."""
    net = as_skorch_net(Norms, (1, 4, 4), 3, {}, optimizer)
    settings = {"lr": 0.05 if optimizer is None else 0.01}
    member_net(net, 3, sam=SAM, device=device, settings=settings)
    states = [initial_state(net, i, seed) for i, seed in enumerate((11, 12))]
    sizes = part_sizes(MASKS, batch_size)
    for p in range(n_phases):
        phase = Segment(
            name=f"phase {p}",
            start=n_epochs * p,
            stop=n_epochs * (p + 1),
            n_epochs=n_epochs * n_phases,
            sizes=sizes,
            rho=(0.05, 0.2),
            lr_schedule=cosine,
            precision=precision,
        )
        states = engine.train(net, states, DATA, phase, MASKS)
    return states


def test_norms_count_what_they_count_in_skorch():
    want, got = train(SkorchEngine()), train(GraphEngine())
    for a, b in zip(got, want):
        counters = [key for key in b.module if key.endswith("num_batches_tracked")]
        assert len(counters) == 3
        assert sorted(b.module[key] for key in counters) == [0, 0, 32]
        assert all(a.module[key] == b.module[key] for key in counters)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_steps_before_a_capture_are_undone(precision, steps):
    """The optimizer's weights are put back, where layers compute with casts, too."""
    train(GraphEngine(), n_phases=1, precision=precision)
    (step,) = steps
    step.wake()
    for member in step.members:
        (group,) = member.optimizer.param_groups
        before = [weight.detach().clone() for weight in group["params"]]
        snapshot = member.snapshot()
        step.position.zero_()
        member.step()
        moved = [not torch.equal(a, b) for a, b in zip(group["params"], before)]
        assert sum(moved) > 6
        member.put_back(snapshot)
        assert all(torch.equal(a, b) for a, b in zip(group["params"], before))


def test_steps_are_counted_where_the_weights_are():
    """A loaded state has its counts on the CPU, where no graph could change them."""
    weight = nn.Parameter(torch.zeros(2, device="meta"))  # any other device
    optimizer = torch.optim.Adam([weight])
    moments = {name: torch.zeros(2) for name in ("exp_avg", "exp_avg_sq")}
    states = {0: {"step": torch.tensor(3.0), **moments}}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
    assert optimizer.state[weight]["step"].device.type == "cpu"
    _count_on_device(optimizer)
    assert optimizer.state[weight]["step"].device.type == "meta"


ADAPTIVE = [torch.optim.Adam, torch.optim.NAdam]


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_adaptive_optimizers_go_on_in_a_next_phase_on_a_gpu(optimizer):
    want = train(SkorchEngine(), optimizer=optimizer)
    got = train(GraphEngine(), optimizer=optimizer, device="cuda")
    for a, b in zip(got, want):
        losses = [[row["train_loss"] for row in state.history] for state in (a, b)]
        np.testing.assert_allclose(*losses, rtol=0.02)
        for key, entries in b.optimizer["state"].items():
            assert float(a.optimizer["state"][key]["step"]) == float(entries["step"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_capture_on_a_gpu_moves_no_weights(precision):
    """After one step members are one step from where they began, and not four."""
    settings = {"n_phases": 1, "n_epochs": 1, "batch_size": 64, "precision": precision}
    want = train(SkorchEngine(), **settings)
    got = train(GraphEngine(), device="cuda", **settings)
    began = train(SkorchEngine(), **settings | {"n_phases": 0})
    for states in zip(got, want, began):
        a, b, c = (state.module["module.head.weight"] for state in states)
        assert (a - c).norm().item() == pytest.approx((b - c).norm().item(), rel=0.1)
