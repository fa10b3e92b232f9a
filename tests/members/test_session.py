"""Training of one member: callbacks, history, stopping, and segments."""

import os
import pickle
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, LRScheduler
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.skorch_engine import train_member
from sklearn_sharpbalance.exceptions import DivergenceError
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
    restore,
)
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.members.session import NO_REPORT, Report
from sklearn_sharpbalance.optim import SAM
from tests.members.cases import segment

N_EPOCHS = 4


def table(n=48, seed=0, held_out=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + held_out, 5)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 1)
    valid = TrainingData(X[n:], y[n:]) if held_out else None
    return TrainingData(X[:n], y[:n], valid=valid)


def make_net(callbacks=None, module=MLP, lr=None, **module_options):
    nested = {f"module__{key}": value for key, value in module_options.items()}
    if module is MLP:
        nested.setdefault("module__hidden", (6,))
    net = as_skorch_net(module, (5,), 3, nested)
    settings = {"lr": lr, "batch_size": 16}
    return member_net(
        net, 3, sam=SAM, device="cpu", settings=settings, callbacks=callbacks
    )


def train(
    net, data, cuts=(0, N_EPOCHS), *, mask=None, schedule=cosine, report=NO_REPORT
):
    """Train one member through the segments between the cuts."""
    mask = np.arange(len(data)) % 3 == 0 if mask is None else mask
    state = initial_state(net, 0, seed=3)
    sizes = batch_sizes(mask[None], 16)
    for start, stop in pairwise(cuts):
        phase = segment(
            stop, start=start, n_epochs=cuts[-1], sizes=sizes, lr_schedule=schedule
        )
        state = train_member(net, state, data, phase, mask, report)
        state = pickle.loads(pickle.dumps(state))  # as if it came from a worker
    return state


class WithDropout(nn.Module):
    """BatchNorm and dropout: buffers and random numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 3)
        )

    def forward(self, X):
        return self.layers(X)


class Recorder(Callback):
    """Record the calls."""

    def initialize(self):
        self.calls_ = []
        return self

    def on_train_begin(self, net, X=None, y=None, **kwargs):
        self.calls_.append("train begins")

    def on_train_end(self, net, X=None, y=None, **kwargs):
        self.calls_.append("train ends")

    def on_epoch_begin(self, net, dataset_train=None, dataset_valid=None, **kwargs):
        self.calls_.append("epoch begins")

    def on_epoch_end(self, net, dataset_train=None, dataset_valid=None, **kwargs):
        self.calls_.append(f"epoch {net.history[-1, 'epoch']} ends")


class HalveRho(Callback):
    """Halve rho after every epoch."""

    def on_epoch_end(self, net, **kwargs):
        net.history.record("rho", net.optimizer_.param_groups[0]["rho"])
        for group in net.optimizer_.param_groups:
            group["rho"] /= 2


SLOW_CUTS = pytest.param((0, 1, 2, 3, N_EPOCHS), marks=pytest.mark.slow)
STEP_LR = {"policy": "StepLR", "step_size": 1, "gamma": 0.5}


@pytest.mark.parametrize("module", [MLP, WithDropout])
@pytest.mark.parametrize(
    "callbacks",
    [
        None,
        [("schedule", LRScheduler(**STEP_LR))],
        [("recorder", Recorder())],
        [("radius", HalveRho())],
    ],
    ids=["none", "scheduler", "recorder", "radius"],
)
@pytest.mark.parametrize("cuts", [(0, 1, N_EPOCHS), SLOW_CUTS], ids=["two", "four"])
def test_segments_do_not_change_the_result(module, callbacks, cuts):
    data, net = table(held_out=12), make_net(callbacks, module)
    whole, cut = train(net, data), train(net, data, cuts)
    for key, value in whole.module.items():
        assert value.equal(cut.module[key]), key
    for key, entries in whole.optimizer["state"].items():
        for name, value in entries.items():
            assert torch.equal(value, cut.optimizer["state"][key][name])
    columns = ("epoch", "train_loss", "valid_loss", "valid_acc", "lr")
    for one, other in zip(whole.history, cut.history):
        assert [one[c] for c in columns] == [other[c] for c in columns]
    assert len(whole.history) == len(cut.history) == N_EPOCHS


def falling(epoch):
    return 1 / (1 + epoch)


SCHEDULERS = {
    "lambda": {"policy": "LambdaLR", "lr_lambda": falling},
    "plateau": {
        "policy": "ReduceLROnPlateau",
        "monitor": "train_loss",
        "patience": 0,
        "threshold": 0.5,  # requires a loss of less than half
    },
    "one cycle": {
        "policy": OneCycleLR,
        "max_lr": 0.2,
        "total_steps": 3 * N_EPOCHS + 1,
        "step_every": "batch",
    },
    "warm restart": {"policy": "WarmRestartLR", "base_period": 2},
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_segments_do_not_change_the_result_with_any_scheduler(kind):
    net = make_net([("schedule", LRScheduler(**SCHEDULERS[kind]))])
    whole, cut = train(net, table()), train(net, table(), (0, 1, 3, N_EPOCHS))
    rates = [row["lr"] for row in whole.history]
    assert [row["lr"] for row in cut.history] == rates
    assert len(set(rates)) > 1
    for key, value in whole.module.items():
        assert value.equal(cut.module[key]), key


def test_scheduler_continues_with_a_new_optimizer():
    """Pruning resets the optimizer, but not the learning rate."""
    net = make_net([("schedule", LRScheduler(**SCHEDULERS["lambda"]))])
    rates = [row["lr"] for row in train(net, table()).history]
    state = replace(train(net, table(), (0, 2)), optimizer=None)
    sizes = batch_sizes(np.zeros((1, 48), dtype=bool), 16)
    phase = segment(4, start=2, sizes=sizes, rho=(0.0,))
    state = train_member(net, state, table(), phase, np.zeros(48, dtype=bool))
    assert [row["lr"] for row in state.history] == pytest.approx(rates)


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3)])
def test_callbacks_are_kept_between_segments(cuts):
    state = train(make_net([("recorder", Recorder())]), table(), cuts)
    epochs = [f"epoch {i} ends" for i in (1, 2, 3)]
    expected = ["train begins"]
    for line in epochs:
        expected += ["epoch begins", line]
    assert state.extra["callbacks"]["recorder"].calls_ == [*expected, "train ends"]


class RecordBatches(Callback):
    """Record batches and gradient norms."""

    def initialize(self):
        self.batches_, self.norms_ = [], []
        return self

    def on_batch_end(self, net, batch=None, training=False, **kwargs):
        x, y = batch
        self.batches_.append((training, len(x), len(y), tuple(kwargs["y_pred"].shape)))

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.norms_.append(sum(float(p.grad.norm()) for _, p in named_parameters))


def test_callbacks_get_batches_and_gradients():
    data = table(n=48, held_out=10)
    net = make_net([("watch", RecordBatches())])
    mask = np.arange(48) < 32  # two batches with SAM, one without
    watcher = train(net, data, (0, 2), mask=mask).extra["callbacks"]["watch"]
    training = [(True, 16, 16, (16, 3))] * 3
    held_out = [(False, 10, 10, (10, 3))]
    assert watcher.batches_ == (training + held_out) * 2
    assert len(watcher.norms_) == 6
    assert min(watcher.norms_) > 0


def test_history_has_the_scores_of_held_out_samples():
    data, net = table(held_out=25), make_net()
    state = train(net, data)
    logits = restore(net, state).module_.eval()(torch.tensor(data.valid.X))
    y = torch.tensor(data.valid.y)
    row = state.history[-1]
    loss = nn.functional.cross_entropy(logits, y).item()
    assert row["valid_loss"] == pytest.approx(loss, rel=1e-5)
    accuracy = (logits.argmax(1) == y).double().mean().item()
    assert row["valid_acc"] == pytest.approx(accuracy)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_held_out_sample_without_prediction_counts_as_wrong(weight):
    data = table(held_out=25)
    plain = train(make_net(), data).history[-1]
    X, y = (np.concatenate([a[:1], a]) for a in (data.valid.X, data.valid.y))
    X[0], y[0] = np.nan, 0  # the class that argmax returns
    weights = np.r_[weight, np.ones(25)].astype(np.float32)
    valid = replace(data.valid, X=X, y=y, weight=weights)
    row = train(make_net(), replace(data, valid=valid)).history[-1]
    assert row["valid_acc"] == pytest.approx(plain["valid_acc"] * 25 / (25 + weight))
    if weight == 0:
        assert row["valid_loss"] == pytest.approx(plain["valid_loss"], rel=1e-5)


def test_callbacks_of_the_user_are_not_changed():
    mine = [("recorder", Recorder()), ("schedule", LRScheduler(**STEP_LR))]
    before = [dict(vars(callback)) for _, callback in mine]
    train(make_net(mine), table(), (0, 1))
    assert [vars(callback) for _, callback in mine] == before


def test_learning_rate_is_set_before_every_batch():
    state = train(make_net(lr=0.5), table(48), (0, 2), schedule=lambda done: 1 - done)
    # The last of three batches in each of two epochs.
    rates = [0.5 * (1 - 2 / 6), 0.5 * (1 - 5 / 6)]
    assert [row["lr"] for row in state.history] == pytest.approx(rates)


class ReceivesSigint(Callback):
    """Receive SIGINT in the callback's own frame."""

    def on_epoch_end(self, net, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**6):
            pass


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_the_frame_of_a_callback_is_raised():
    with pytest.raises(KeyboardInterrupt):
        train(make_net([("slow", ReceivesSigint())]), table())


def test_report_hears_of_epochs_and_can_stop_the_member():
    calls = []

    class StopSecond(Report):
        def epoch(self, member, record):
            calls.append((member, record["epoch"], record["phase"]))
            return record["epoch"] == 2

    state = train(make_net(), table(), report=StopSecond())
    assert calls == [(0, 1, "balanced"), (0, 2, "balanced")]
    assert state.stopped
    again = train_member(make_net(), state, table(), None, None)
    assert again is state


def test_loss_that_is_not_finite_raises_with_advice():
    data = table()
    data = replace(data, X=data.X * 1e20)
    with pytest.raises(
        DivergenceError, match=r"member 0 .* epoch 1 .* Lower lr or rho"
    ):
        train(make_net(lr=1e30), data)
