"""States after captured steps; on a CPU nothing is captured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph import engine as graph_engine
from sklearn_sharpbalance.engine.graph import step as graph_step
from sklearn_sharpbalance.engine.graph.step import GraphedStep, _count_on_device
from sklearn_sharpbalance.members import (
    as_skorch_net,
    member_net,
)
from sklearn_sharpbalance.members.member_params import give_settings
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM, LookSAM, MomentumSAM
from tests.cases import rest_slow
from tests.engine.cases import segment, start

RNG = np.random.default_rng(0)
DATA = TrainingData(
    RNG.normal(size=(30, 1, 4, 4)).astype(np.float32), np.arange(30) % 3
)
MASKS = RNG.random((2, 30)) < 0.5


class Norms(nn.Module):
    """A BatchNorm, an InstanceNorm with a counter, and one in evaluation mode."""

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
    sam=SAM,
    optimizer=None,
    device="cpu",
    n_phases=2,
    n_epochs=2,
    batch_size=8,
    precision="float32",
    member_params=None,
):
    """Return the states after phases with these numbers of epochs."""
    net = as_skorch_net(Norms, (1, 4, 4), 3, {}, optimizer)
    settings = {"lr": 0.05 if optimizer is None else 0.01}
    member_net(net, 3, sam=sam, device=device, settings=settings)
    if member_params is not None:
        give_settings(net, member_params)
    states, options = start(net), {"batch_size": batch_size, "precision": precision}
    with engine.open(net, states, DATA) as run:
        for p in range(n_phases):
            stop = n_epochs * (p + 1)
            phase = segment(MASKS, n_epochs * p, stop, n_epochs * n_phases, **options)
            states = run.train(replace(phase, name=f"phase {p}"), MASKS)
    return states


def test_batch_counts_of_norms_equal_those_of_skorch():
    want, got = train(SkorchEngine()), train(GraphEngine())
    for a, b in zip(got, want):
        counters = [key for key in b.module if key.endswith("num_batches_tracked")]
        assert len(counters) == 3
        assert sorted(b.module[key] for key in counters) == [0, 0, 16]
        assert all(a.module[key] == b.module[key] for key in counters)


class FakeGraph:
    """Replaces a CUDA graph: repeats one kind of step without counting steps."""

    def __init__(self, step, work):
        self.step, self.work = step, work
        self.kind = [member.kind() for member in step.members]
        self.n_replays = 0

    def pool(self):
        return self

    def replay(self):
        assert [member.kind() for member in self.step.members] == self.kind
        counts = [member.optimizer.count for member in self.step.members]
        self.work()
        for member, count in zip(self.step.members, counts):
            member.optimizer.count = count
        self.n_replays += 1


@pytest.fixture
def captured(monkeypatch):
    """Use steps whose graphs are replaced on the CPU."""
    built = []

    class OnCpu(GraphedStep):
        def __init__(self, *args):
            super().__init__(*args)
            self.streams = ["as on a GPU"]
            self.every_graph = []
            built.append(self)

        def _step(self):
            for member in self.members:
                member.step()
            self.position += 1

    def record(work, device, before_each, pool):
        step = built[-1]
        for _ in range(4):  # three warm-up runs, and the captured one
            before_each()
            work()
        before_each()
        assert pool is (step.every_graph[0] if step.every_graph else None)
        graph = FakeGraph(step, work)
        step.every_graph.append(graph)
        return graph, None

    monkeypatch.setattr(graph_engine, "GraphedStep", OnCpu)
    monkeypatch.setattr(graph_step, "capture_graph", record)
    return built


def assert_same_states(got, want, tol=1e-5):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.module, b.module, rtol=tol, atol=tol)
        for key, entries in b.optimizer["state"].items():
            torch.testing.assert_close(
                a.optimizer["state"][key], entries, rtol=tol, atol=tol
            )
        losses = [[row["train_loss"] for row in state.history] for state in (a, b)]
        np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("sam", rest_slow(OPTIMIZERS.values(), [SAM, LookSAM]))
def test_captured_steps_equal_eager_steps(sam, captured):
    got = train(GraphEngine(), sam=sam)
    assert_same_states(got, train(SkorchEngine(), sam=sam))
    for step in captured:  # one per phase
        n_kinds = 3 if sam is LookSAM else 2  # one of them is without SAM
        assert len(step.every_graph) == n_kinds
        assert sum(graph.n_replays for graph in step.every_graph) == 2 * 4
    if sam is LookSAM:
        counts = [entry["sam_steps"] for entry in got[0].optimizer["state"].values()]
        n_sam = batch_sizes(MASKS, 8).n_sam
        assert set(counts) == {2 * 2 * n_sam}


def test_members_with_different_k_have_a_graph_per_combination(captured):
    apart = [{"optimizer__k": 2}, {"optimizer__k": 3}]
    options = {"sam": LookSAM, "member_params": apart}
    got = train(GraphEngine(), **options)
    assert_same_states(got, train(SkorchEngine(), **options))
    kinds = {tuple(graph.kind) for graph in captured[0].every_graph}
    perturb, reuse, plain = (True, True), (True, False), (False, False)
    assert kinds == {(perturb, perturb), (reuse, reuse), (plain, plain)} | {
        (perturb, reuse),
        (reuse, perturb),
    }


def test_step_counts_are_on_the_device_of_the_weights():
    """A loaded state has its counts on the CPU, where no graph can change them."""
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
@pytest.mark.parametrize("sam", [SAM, LookSAM, MomentumSAM])
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_adaptive_optimizers_continue_in_the_next_phase_on_a_gpu(optimizer, sam):
    want = train(SkorchEngine(), optimizer=optimizer, sam=sam)
    got = train(GraphEngine(), optimizer=optimizer, sam=sam, device="cuda")
    for a, b in zip(got, want):
        losses = [[row["train_loss"] for row in state.history] for state in (a, b)]
        np.testing.assert_allclose(*losses, rtol=0.02)
        for key, entries in b.optimizer["state"].items():
            assert float(a.optimizer["state"][key]["step"]) == float(entries["step"])


@pytest.mark.gpu
@pytest.mark.parametrize("sam", [SAM, LookSAM, MomentumSAM])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_capture_on_a_gpu_does_not_change_weights(precision, sam):
    """After one step the weights have moved by one step, not by four."""
    settings = {"n_phases": 1, "n_epochs": 1, "batch_size": 64, "precision": precision}
    settings["sam"] = sam
    want = train(SkorchEngine(), **settings)
    got = train(GraphEngine(), device="cuda", **settings)
    began = train(SkorchEngine(), **settings | {"n_phases": 0})
    for states in zip(got, want, began):
        a, b, c = (state.module["module.head.weight"] for state in states)
        assert (a - c).norm().item() == pytest.approx((b - c).norm().item(), rel=0.1)
