"""One graph for all segments of a phase; on a CPU nothing is captured."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import SmallCNN
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine
from sklearn_sharpbalance.engine.graph.step import _MemberStep
from sklearn_sharpbalance.engine.support import ELEMENTWISE
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.session import NO_REPORT, Report
from sklearn_sharpbalance.optim import SAM
from tests.cases import rest_slow
from tests.engine.cases import start, train_segments


class Task:
    """Two members, pictures and masks; runs segments of one phase."""

    def __init__(self, callbacks=None, **settings):
        rng = np.random.default_rng(0)
        y = rng.integers(3, size=48)
        X = rng.integers(0, 120, size=(48, 1, 8, 8)) + 60 * y[:, None, None, None]
        self.data = TrainingData(X.astype(np.uint8), y)
        net = as_skorch_net(SmallCNN, (1, 8, 8), 3, {"module__width": 8})
        self.net = member_net(net, 3, sam=SAM, device="cpu", callbacks=callbacks)
        self.masks = rng.random((2, 48)) < 0.5
        self.settings = settings

    def open(self, engine):
        return engine.open(self.net, start(self.net), self.data)

    def segments(self, run, edges, masks=None, report=NO_REPORT):
        """Train segments of one phase and return the states after the last one."""
        masks = self.masks if masks is None else masks
        return train_segments(run, edges, masks, report, **self.settings)

    def run(self, engine, edges, report=NO_REPORT):
        with self.open(engine) as run:
            return self.segments(run, edges, report=report)


def assert_equal(got, want, tol=0.0):
    for a, b in zip(got, want, strict=True):
        for key, value in b.module.items():
            torch.testing.assert_close(a.module[key], value, atol=tol, rtol=tol)
        rates = [[row["lr"] for row in state.history] for state in (a, b)]
        assert rates[0] == pytest.approx(rates[1], rel=1e-6)
        for group, other in zip(*(s.optimizer["param_groups"] for s in (a, b))):
            assert group.pop("lr") == pytest.approx(other.pop("lr"), rel=1e-6)
            assert group == other


@pytest.mark.parametrize("precision", rest_slow(["bf16", "float32"]))
def test_segments_share_a_step_and_give_the_same_members(steps, precision):
    task = Task(precision=precision)
    whole = task.run(GraphEngine(), [0, 6])
    cut = task.run(GraphEngine(), [0, 1, 2, 5, 6])
    assert len(steps) == 2  # one for each run
    assert_equal(cut, whole)
    assert [len(state.history) for state in cut] == [6, 6]


def test_members_between_segments_equal_those_of_skorch():
    """States do not contain the settings that a capture needs."""
    task = Task()
    want = task.run(SkorchEngine(), [0, 2, 4])
    got = task.run(GraphEngine(), [0, 2, 4])
    assert isinstance(got[0].optimizer["param_groups"][0]["lr"], float)
    assert_equal(got, want, 2e-4)


def test_other_states_masks_or_epochs_build_a_new_step(steps):
    task = Task()
    with task.open(GraphEngine()) as run:
        first = task.segments(run, [0, 2])
        second = task.segments(run, [2, 3])
        assert len(steps) == 1
        run.replace(first)
        task.segments(run, [2, 3])  # again from an earlier state
        assert len(steps) == 2
        run.replace(second)
        task.segments(run, [3, 4])
        assert len(steps) == 3
        task.segments(run, [4, 5], ~task.masks)
        assert len(steps) == 4


class CountEnds(Callback):
    ends = 0

    def on_train_end(self, net, **kwargs):
        CountEnds.ends += 1


def test_stopped_member_is_removed_and_ends_once(steps, monkeypatch):
    monkeypatch.setattr(CountEnds, "ends", 0)
    task = Task(callbacks=[("ends", CountEnds())])

    class StopFirst(Report):
        def epoch(self, member, record):
            return member == 0 and record["epoch"] == 3

    got = task.run(GraphEngine(), [0, 2, 4, 5, 6], report=StopFirst())
    assert [len(state.history) for state in got] == [3, 6]
    assert [state.stopped for state in got] == [True, False]
    assert len(steps) == 2  # both members, then the second alone
    assert CountEnds.ends == 2
    want = task.run(SkorchEngine(), [0, 2, 4, 5, 6], report=StopFirst())
    assert_equal(got, want, 2e-4)


def test_run_makes_room_and_is_freed(steps):
    task = Task()
    with task.open(GraphEngine()) as run:
        task.segments(run, [0, 2])
        closed = []
        steps[0].close = lambda: closed.append(0)
        run.make_room()
        assert closed == [0]
        task.segments(run, [2, 6])
        steps[1].close = lambda: closed.append(1)
    assert closed == [0, 1]


@pytest.mark.parametrize("kind", [*ELEMENTWISE, "momentum"])
def test_restored_steps_leave_no_optimizer_state(kind):
    """The optimizer's state of the steps before a capture is discarded."""

    def make():
        module = nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.copy_(torch.arange(6.0).view(2, 3) - 2)
            module.bias.zero_()
        options = {"momentum": 0.9} if kind == "momentum" else {}
        base = torch.optim.SGD if kind == "momentum" else kind
        optimizer = SAM(module.parameters(), base, rho=0.1, lr=0.1, **options)
        return SimpleNamespace(module=module, optimizer=optimizer)

    def train(member, n_steps):
        for n in range(n_steps):
            member.optimizer.zero_grad()
            x = torch.tensor([1.0, n, -2.0])
            member.module(x).square().sum().backward()
            member.optimizer.descend()

    got, want = make(), make()
    before = _MemberStep.snapshot(got)
    train(got, 4)
    _MemberStep.restore(got, before)
    for member in (got, want):
        train(member, 3)
    torch.testing.assert_close(got.module.state_dict(), want.module.state_dict())
    states = (member.optimizer.state_dict()["state"] for member in (got, want))
    torch.testing.assert_close(*states)


class SetWeightDecay(Callback):
    """Set weight decay in the third epoch; check the net that callbacks receive."""

    def on_epoch_begin(self, net, **kwargs):
        (group,) = net.optimizer_.param_groups
        assert isinstance(group["lr"], float)
        assert any("num_batches_tracked" in key for key in net.module_.state_dict())
        if len(net.history) == 3:
            group["weight_decay"] = 0.5


def squared_norms(states):
    """Return the squared norm of each member's weights, robust to rounding."""
    return [
        sum(
            v.square().sum().item() for k, v in s.module.items() if k.endswith("weight")
        )
        for s in states
    ]


def test_options_set_by_callbacks_apply_from_the_next_epoch():
    task = Task([SetWeightDecay()])
    got, want = (task.run(engine, [0, 6]) for engine in (GraphEngine(), SkorchEngine()))
    assert got[0].optimizer["param_groups"][0]["weight_decay"] == 0.5
    assert squared_norms(got) == pytest.approx(squared_norms(want), rel=1e-3)


def test_changed_options_require_a_new_capture(steps):
    Task().run(GraphEngine(), [0, 2])
    (step,) = steps
    graphs = {(True, True): object()}
    step.graphs, step._captured_options = graphs, step._options()
    step.attach()
    step.detach()
    step.attach()
    assert step.graphs is graphs
    step.detach()
    step.members[1].optimizer.param_groups[0]["momentum"] = 0.5
    step.attach()
    assert not step.graphs


@pytest.mark.gpu
def test_graphs_on_a_gpu_use_options_set_by_callbacks():
    task = Task([SetWeightDecay()])
    got = squared_norms(run_on_gpu(task, [0, 6]))
    want = squared_norms(task.run(SkorchEngine(), [0, 6]))
    assert got == pytest.approx(want, rel=0.02)
    plain = squared_norms(run_on_gpu(Task(), [0, 6]))
    assert all(norm < 0.5 * other for norm, other in zip(got, plain))


def run_on_gpu(task, edges):
    task.net.set_params(device="cuda")
    return task.run(GraphEngine(), edges)


@pytest.mark.gpu
def test_one_graph_on_a_gpu_is_used_for_all_segments():
    cut, whole = (run_on_gpu(Task(), edges) for edges in ([0, 1, 2, 6], [0, 6]))
    for a, b in zip(cut, whole):
        for key, value in b.module.items():
            torch.testing.assert_close(a.module[key], value, atol=5e-3, rtol=5e-3)
