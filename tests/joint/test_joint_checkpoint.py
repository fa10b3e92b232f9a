"""Joint training that resumes from any checkpoint gives the same result."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch.utils.data import Dataset, TensorDataset

from sklearn_sharpbalance.exceptions import CheckpointMismatchError
from sklearn_sharpbalance.joint import members as joint
from sklearn_sharpbalance.training.checkpoint import CheckpointFolder
from tests.cases import rest_slow
from tests.joint.diversified_cases import Noisy
from tests.training.killing import (
    NotStackable,
    assert_bitwise,
    joint_estimator,
    small_data,
    weights,
)
from tests.training.test_checkpoint import (
    STOP,
    Interrupting,
    press_ctrl_c,
    without_time,
)

X, Y = small_data()
OTHER = np.random.default_rng(1).normal(size=(40, 5)).astype(np.float32)


@pytest.fixture
def trained(monkeypatch):
    """Record the numbers of trained epochs."""
    epochs = []
    original = joint.train_epoch

    def train_epoch(members, feed, objective, epoch):
        epochs.append(epoch)
        return original(members, feed, objective, epoch)

    monkeypatch.setattr(joint, "train_epoch", train_epoch)
    return epochs


class Unlabeled(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.from_numpy(OTHER[i])


class Frozen(torch.nn.Module):
    """A trunk whose weights depend on the seed."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 6)

    def forward(self, x):
        return self.linear(x).tanh()


class StopsAt(Callback):
    """Stop each member at a different epoch, and set its bias to zero at the end.

    Members train until all have stopped. If on_train_end were called too early or
    more than once, a member would train without its bias.
    """

    def on_train_begin(self, net, **kwargs):
        self.ends_ = 0

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 1:
            self.last_ = 2 + int(1000 * net.history[-1, "train_loss"]) % 3
        if len(net.history) >= self.last_:
            raise KeyboardInterrupt

    def on_train_end(self, net, **kwargs):
        self.ends_ += 1
        net.history.record("ends", self.ends_)
        with torch.no_grad():
            net.module_.module[-1].bias.zero_()


def table():
    return X, Y, None


def with_unlabeled():
    return X, Y, OTHER


def datasets():
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return pairs, None, Unlabeled()


MODULE = {"estimator": NotStackable}
CASES = {
    "stacked": ({}, table),
    "dropout_and_norms": ({"estimator": Noisy}, table),
    "a2d": ({"loss": "a2d"}, with_unlabeled),
    "divdis": ({**MODULE, "loss": "divdis", "pair_members": None}, with_unlabeled),
    "datasets": ({"loss": "a2d"}, datasets),
    "trunk": ({"shared_trunk": Frozen()}, table),
    "trunk_from_the_seed": ({"shared_trunk": Frozen, "random_state": None}, table),
    "trunk_and_transform": (
        {
            "shared_trunk": Frozen(),
            "train_transform": lambda x: x + 0.1 * torch.randn_like(x),
            "loss": "a2d",
        },
        with_unlabeled,
    ),
    "callbacks": (
        {"callbacks": STOP, "validation_fraction": 0.3, "max_epochs": 6, "lr": 0.1},
        table,
    ),
    "members_stop_apart": (
        {**MODULE, "callbacks": [("stops", StopsAt())], "max_epochs": 6}
        | {"random_state": 1},
        table,
    ),
    # Steps that overflow are skipped, and the loss scale is halved.
    "fp16": ({**MODULE, "precision": "fp16", "standardize": False}, lambda: LARGE),
}
LARGE = (300 * X, Y, None)


def make(folder, **params):
    return joint_estimator(folder, **{"max_epochs": 6, **params})


def fit(clf, data):
    X, y, X_unlabeled = data()
    return clf.fit(X, y, X_unlabeled=X_unlabeled)


@pytest.mark.parametrize("checkpoints", rest_slow(["middle", "all"]))
@pytest.mark.parametrize("case", rest_slow(CASES, CASES.keys() - {"a2d", "trunk"}))
def test_resuming_from_every_checkpoint_gives_the_same_result(
    case, checkpoints, tmp_path, snapshots, trained
):
    params, data = CASES[case]
    params = {"max_epochs": 4, **params}
    whole = fit(make(tmp_path / "whole", **params), data)
    want, proba = weights(whole), whole.predict_proba(data()[0])
    copies, n_epochs = list(snapshots), whole.n_iter_
    assert len(copies) == n_epochs + 1
    if checkpoints == "all" and params.get("random_state", 3) is not None:
        plain = fit(make(None, **params), data)
        assert_bitwise(weights(plain), want)
    for done in range(1, n_epochs) if checkpoints == "all" else [n_epochs // 2]:
        trained.clear()
        clf = fit(make(copies[done], **params), data)
        assert trained == list(range(done, n_epochs))
        assert_bitwise(weights(clf), want)
        assert without_time(clf.history_) == without_time(whole.history_)
        assert clf.engine_ == whole.engine_
        np.testing.assert_array_equal(clf.train_indices_, whole.train_indices_)
        np.testing.assert_array_equal(clf.predict_proba(data()[0]), proba)


def test_cases_have_the_intended_effects(tmp_path):
    """A halved loss scale; members that stop at different epochs and end once."""
    fit(make(tmp_path, **CASES["fp16"][0]), CASES["fp16"][1])
    saved = CheckpointFolder(tmp_path).latest()
    assert saved["state"]["members"][0]["extra"]["scaler"]["scale"] < 2**16
    clf = fit(make(tmp_path / "b", **CASES["members_stop_apart"][0]), table)
    assert [rows[-1]["ends"] for rows in clf.history_] == [1, 1, 1]
    asked = {2 + int(1000 * rows[0]["train_loss"]) % 3 for rows in clf.history_}
    assert len(asked) > 1
    assert clf.n_iter_ == max(asked) < 6


OTHERS = {
    "loss": ({"loss": "divdis"}, with_unlabeled, "loss was 'a2d' and is 'divdis'"),
    "trunk": (
        {"shared_trunk": torch.nn.Linear(5, 6)},
        with_unlabeled,
        r"shared_trunk was .*Frozen\[\w+.* and is torch.nn.*Linear\[\w+\]",
    ),
    "unlabeled": (
        {},
        lambda: (X, Y, OTHER + 1),
        r"X_unlabeled was float32 \(40, 5\) \w+ and is float32 \(40, 5\) \w+\.",
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with a finished fit, and its weights."""
    folder = tmp_path_factory.mktemp("finished")
    torch.manual_seed(0)
    params = {"loss": "a2d", "shared_trunk": Frozen(), "max_epochs": 2}
    clf = fit(make(folder, **params), with_unlabeled)
    return folder, params, clf


@pytest.mark.parametrize("other", OTHERS)
def test_other_settings_or_data_raise(other, finished):
    folder, params, _ = finished
    changes, data, message = OTHERS[other]
    with pytest.raises(CheckpointMismatchError, match=message) as caught:
        fit(make(folder, **{**params, **changes}), data)
    assert str(caught.value).count(" was ") == 1  # nothing else


def test_finished_fit_is_loaded(finished, trained):
    folder, params, clf = finished
    again = fit(make(folder, **params), with_unlabeled)
    assert trained == []
    assert_bitwise(weights(again), weights(clf))
    assert again.history_ == clf.history_


@pytest.mark.parametrize("trunk", rest_slow([None, Frozen()]), ids=["alone", "trunk"])
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_old_model_and_the_checkpoint(
    trunk, tmp_path, monkeypatch, trained, every_epoch
):
    params = {"estimator": Interrupting, "shared_trunk": trunk}
    press_ctrl_c(monkeypatch, at=None)
    clf = make(None, **params).fit(X, Y)
    before, proba = weights(clf), clf.predict_proba(X)
    clf.set_params(checkpoint_dir=tmp_path, random_state=7)
    press_ctrl_c(monkeypatch, at=35)  # 3 members, 3 batches: epoch 3
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, Y)
    assert_bitwise(weights(clf), before)
    np.testing.assert_array_equal(clf.predict_proba(X), proba)
    press_ctrl_c(monkeypatch, at=None)
    trained.clear()
    clf.fit(X, Y)
    assert trained == [3, 4, 5]
    whole = make(None, **params, random_state=7).fit(X, Y)
    assert_bitwise(weights(clf), weights(whole))
