"""Batches that callbacks get during a phase of one member."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, EpochScoring

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance.data.batches import batch_sizes
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.skorch_engine import train_member
from sklearn_sharpbalance.members import (
    as_skorch_net,
    initial_state,
    member_net,
)
from sklearn_sharpbalance.optim import SAM
from tests.members.cases import segment

N, N_SAM, BATCH = 50, 23, 16  # two batches of 11 or 12, two of 13 or 14 samples


def train(*callbacks, own=lambda x: x, precision="float32"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)).astype(np.float32)
    X[:, 4] = np.arange(N)  # identifies samples
    data = TrainingData(own(X), (X[:, 0] > 0).astype(np.int64))
    net = as_skorch_net(MLP, (5,), 2, {"module__hidden": (6,)})
    named = [(type(one).__name__, one) for one in callbacks]
    settings = {"lr": 1e-3, "batch_size": BATCH}
    net = member_net(net, 2, sam=SAM, device="cpu", settings=settings, callbacks=named)
    mask = np.arange(N) < N_SAM
    sizes = batch_sizes(mask[None], BATCH)
    assert sizes.n_batches * sizes.width > N
    phase = segment(2, sizes=sizes, precision=precision)
    return train_member(net, initial_state(net, 0, seed=3), data, phase, mask)


class Census(Callback):
    """Record samples and logits of batches."""

    def initialize(self):
        self.begun_, self.ended_ = [], []
        return self

    def on_batch_begin(self, net, batch=None, training=None, **kwargs):
        self.begun_ += batch[0][:, 4].int().tolist()

    def on_batch_end(self, net, batch=None, training=None, y_pred=None, **kwargs):
        x, y = batch
        self.ended_ += x[:, 4].int().tolist()
        assert len(x) == len(y) == len(y_pred)
        assert y.equal((x[:, 0] > 0).long())


def test_callbacks_get_every_sample_once_per_epoch():
    heard = train(Census()).extra["callbacks"]["Census"]
    for seen in (heard.begun_, heard.ended_):
        assert sorted(seen[:N]) == sorted(seen[N:]) == list(range(N))


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_batch_scoring_equals_the_score_of_the_samples(precision):
    scoring = EpochScoring("accuracy", on_train=True, name="acc", lower_is_better=False)
    history = train(scoring, precision=precision).history
    for row in history:
        right = row["acc"] * N
        assert right == pytest.approx(round(right), abs=1e-9)
        assert 0 < right < N


class Edit(Callback):
    """Change the batch in place."""

    def on_batch_begin(self, net, batch=None, training=None, **kwargs):
        batch[0].neg_()


def test_batches_changed_by_a_callback_are_trained_on():
    edited, expected = train(Edit()), train(own=np.negative)
    assert not edited.module["module.1.weight"].equal(train().module["module.1.weight"])
    for key, value in expected.module.items():
        torch.testing.assert_close(edited.module[key], value)
