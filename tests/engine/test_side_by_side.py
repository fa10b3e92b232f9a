"""Members that train together equal those that train one by one."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import GraphEngine, SkorchEngine, StackedEngine
from sklearn_sharpbalance.members import as_skorch_net, member_net
from sklearn_sharpbalance.members.session import NO_REPORT, Report
from sklearn_sharpbalance.members.weights import pruned_member
from sklearn_sharpbalance.optim import SAM
from tests.cases import rest_slow
from tests.engine.cases import generators, start, train_segments

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
DATA = TrainingData(X, (np.arange(40) % 3).astype(np.int64))
MASKS = RNG.random((2, 40)) < 0.5
# The graph engine also runs on a CPU, without capturing.
ENGINES = pytest.mark.parametrize("engine", [StackedEngine, GraphEngine])


def members_net(*callbacks, optimizer=None):
    net = as_skorch_net(MLP, (4,), 3, {"module__hidden": (5,)}, optimizer)
    return member_net(net, 3, sam=SAM, device="cpu", callbacks=list(callbacks))


def train(engine, net, states, edges, report=NO_REPORT, members=(0, 1), **settings):
    """Return the states after segments of one phase."""
    masks, sizes = MASKS[list(members)], batch_sizes(MASKS, batch_size=16)
    with engine.open(net, states, DATA) as run:
        return train_segments(run, edges, masks, report, sizes=sizes, **settings)


class StopFirst(Report):
    def epoch(self, member, record):
        return member == 0


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.module, b.module, atol=2e-5, rtol=2e-4)
        assert len(a.history) == len(b.history)
        assert a.stopped == b.stopped


EVENTS = ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"]


class Shift(Callback):
    def __init__(self, event):
        self.event = event

    def on_train_begin(self, net, **kwargs):
        self.shift("on_train_begin", net)

    def on_epoch_begin(self, net, **kwargs):
        self.shift("on_epoch_begin", net)

    def on_epoch_end(self, net, **kwargs):
        self.shift("on_epoch_end", net)

    def on_train_end(self, net, **kwargs):
        self.shift("on_train_end", net)

    def shift(self, event, net):
        if event == self.event:
            with torch.no_grad():
                for weight in net.module_.parameters():
                    weight.add_(0.1 * self.draw())

    def draw(self):
        return 1.0


class Noise(Shift):
    def __init__(self, event, source):
        super().__init__(event)
        self.source = source

    def draw(self):
        if self.source == "torch":
            return torch.randn(()).item()
        of_numpy = self.source == "numpy"
        return np.random.normal() if of_numpy else random.gauss()  # noqa: NPY002


SOURCES = ["torch", "numpy", "python"]
PAIRS = list(itertools.product(SOURCES, EVENTS))
FIRST = [("torch", "on_train_begin"), ("numpy", "on_epoch_end")]


@ENGINES
@pytest.mark.parametrize(("source", "event"), rest_slow(PAIRS, FIRST))
def test_draws_of_callbacks_do_not_depend_on_the_engine(engine, source, event):
    net = members_net(("noise", Noise(event, source)))
    want = train(SkorchEngine(), net, start(net), [0, 2, 6])
    Noise(event, source).draw()
    before = generators()
    got = train(engine(), net, start(net), [0, 2, 6])
    assert generators() == before
    assert_same(got, want)


@ENGINES
@pytest.mark.parametrize("event", rest_slow(EVENTS[1:], ["on_epoch_end"]))
def test_changes_of_pruned_weights_by_callbacks_are_undone(engine, event):
    net = members_net(("shift", Shift(event)))
    states = [pruned_member(state, 0.5, net) for state in start(net)]
    want = train(SkorchEngine(), net, states, [0, 2, 6], pruned=True)
    got = train(engine(), net, states, [0, 2, 6], pruned=True)
    assert_same(got, want)
    for a, b in zip(got, states):
        for key, weight in b.module.items():
            if weight.ndim > 1:
                assert not a.module[key][weight == 0].any()


def test_members_with_different_numbers_of_steps_continue():
    """A member that a callback stopped may train again in partial_fit."""
    net = members_net()
    one, other = start(net)
    states = [
        *train(SkorchEngine(), net, [one], [0, 1], members=[0]),
        *train(SkorchEngine(), net, [other], [0, 4], members=[1]),
    ]
    want = train(SkorchEngine(), net, states, [4, 6])
    got = train(GraphEngine(), net, states, [4, 6])
    assert [len(state.history) for state in got] == [3, 6]
    assert_same(got, want)


@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_and_pruned_member_is_not_changed(stopped):
    """Its new optimizer makes no step; the momentum of the other member is kept."""
    net = members_net()
    states = [pruned_member(state, 0.3, net) for state in start(net)]
    states[stopped] = replace(states[stopped], stopped=True)
    want = train(SkorchEngine(), net, states, [0, 2, 4], pruned=True)
    got = train(StackedEngine(), net, states, [0, 2, 4], pruned=True)
    assert_same(got, want)
    assert got[stopped] is states[stopped]


@ENGINES
def test_training_does_not_change_the_given_states(engine):
    net, engine = members_net(), engine()
    before = train(engine, net, start(net), [0, 2])
    kept = list(before)
    after = train(engine, net, before, [2, 4], StopFirst())
    assert [state.stopped for state in after] == [True, False]
    assert all(a is b for a, b in zip(before, kept))
    assert not any(state.stopped for state in before)


@ENGINES
def test_epochs_are_counted_by_the_phase_not_by_the_history(engine):
    """Restoring the best epoch or a checkpoint shortens the history."""
    net = members_net()
    states = train(SkorchEngine(), net, start(net), [0, 3])
    cut = [replace(state, history=state.history[:1]) for state in states]
    want = train(SkorchEngine(), net, cut, [3, 4])
    got = train(engine(), net, cut, [3, 4])
    assert [len(state.history) for state in got] == [2, 2]
    assert_same(got, want)


class ReduceInitialRate(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.optimizer_.param_groups[0]["initial_lr"] *= 0.1


@ENGINES
def test_initial_lr_set_by_a_callback_applies_from_the_next_epoch(engine):
    net = members_net(("slow", ReduceInitialRate()))
    want, got = (train(e, net, start(net), [0, 3]) for e in (SkorchEngine(), engine()))
    assert_same(got, want)
    rates = [[row["lr"] for row in state.history] for state in (*want, *got)]
    np.testing.assert_allclose(rates, rates[:1] * 4, rtol=1e-6)
    assert rates[0][2] < 0.02 * rates[0][0]


class Heard(Report):
    def __init__(self):
        self.epochs = {0: [], 1: []}  # of each member

    def reached(self, members, epochs):
        for member in members:
            self.epochs[member].append(epochs)


@pytest.mark.parametrize("engine", [SkorchEngine, StackedEngine, GraphEngine])
def test_members_report_how_many_epochs_they_have_trained(engine):
    net, heard = members_net(), Heard()
    train(engine(), net, start(net), [0, 2, 3], report=heard)
    thirds = [n / 3 for n in range(1, 10)]  # an epoch has three batches
    whole = [1, 2, 3]  # the graph engine does not wait for a batch
    want = pytest.approx(whole if engine is GraphEngine else thirds)
    assert heard.epochs == {0: want, 1: want}
