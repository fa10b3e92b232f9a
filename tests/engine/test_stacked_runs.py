"""Stacked weights are kept from one segment to the next."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EarlyStopping
from torch import nn

import sklearn_sharpbalance.engine.stacked.engine as stacked_engine
import sklearn_sharpbalance.engine.stacked.members as stacked_members
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.engine.stacked.members import SessionWithoutNet
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.networks import MLP
from tests.cases import rest_slow

X, Y = (array[::2] for array in load_iris(return_X_y=True))


@pytest.fixture
def sessions(monkeypatch):
    """Record the kind and the member of every session, in order."""
    made = []
    for kind in (MemberSession, SessionWithoutNet):

        class Recorded(kind):
            def __init__(self, net, state, data, segment):
                super().__init__(net, state, data, segment)
                made.append((type(self).__bases__[0], state.index))

        monkeypatch.setattr(stacked_members, kind.__name__, Recorded)
    return made


def estimator(**params):
    options = {"max_epochs": 4, "batch_size": 32, "random_state": 0}
    return SharpBalanceEnsembleClassifier(engine="stacked", **options | params)


def test_members_are_restored_once_per_fit(sessions, tmp_path, every_epoch):
    cut = estimator(checkpoint_dir=tmp_path / "fit").fit(X, Y)
    others = [(SessionWithoutNet, 1), (SessionWithoutNet, 2)]
    assert sessions == [(MemberSession, 0), *others]
    whole = estimator(memory=str(tmp_path / "cache")).fit(X, Y)
    for a, b in zip(cut.estimators_, whole.estimators_):
        for name, value in b.module_.state_dict().items():
            assert a.module_.state_dict()[name].equal(value)
        assert (
            a.optimizer_.state_dict()["param_groups"]
            == (b.optimizer_.state_dict()["param_groups"])
        )


OF_MODULE = {"module__n_features": 4, "module__n_classes": 3}


class NetOfUser(NeuralNetClassifier):
    """Has methods of its own, which may be called."""


@pytest.mark.parametrize(
    "params",
    [
        {"callbacks": [("stop", EarlyStopping("train_loss"))]},
        {"estimator": NetOfUser(MLP, **OF_MODULE, criterion=nn.CrossEntropyLoss)},
        {"validation_fraction": 0.2},
        {"weight_averaging": "uniform", "warmup_epochs": 0},
        {"member_params": [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.03}]},
    ],
    ids=lambda params: next(iter(params)),
)
def test_members_have_nets_where_these_are_used(params, sessions):
    estimator(**params).fit(X, Y)
    assert {kind for kind, _ in sessions} == {MemberSession}


class ShrinkWeights(Callback):
    """Changes weights and the radius of SAM after every epoch."""

    def on_epoch_end(self, net, **kwargs):
        with torch.no_grad():
            for weight in net.module_.parameters():
                weight.mul_(0.99)
        net.optimizer_.param_groups[0]["rho"] *= 0.9


CASES = {
    "sam": {"rho": [0.05, 0.1, 0.2]},
    "plain_warmup": {"warmup": "sgd"},
    "sharpest": {"warmup": "sgd", "selection": "sharpest"},
    "momentum_sam": {"sam": "momentum_sam"},
    "look_sam": {"sam": "look_sam", "warmup": "sgd"},
    "friendly_sam": {"sam": "friendly_sam", "optimizer": torch.optim.Adam, "lr": 0.01},
    "pruning": {"prune": 0.3},
    "averaging": {"weight_averaging": "uniform"},
    "early_stopping": {"early_stopping": True, "validation_fraction": 0.2},
    "callback": {"callbacks": [("shrink", ShrinkWeights())]},
    "stopping_callback": {
        "callbacks": [("stop", EarlyStopping("train_loss", patience=2, threshold=0.3))],
    },
}


SIMILAR = {
    *("callback", "friendly_sam", "look_sam", "plain_warmup", "sharpest", "sam"),
    "stopping_callback",
}


@pytest.mark.parametrize("case", rest_slow(CASES, CASES.keys() - SIMILAR))
def test_a_run_of_all_phases_equals_runs_that_are_opened_anew(case, monkeypatch):
    """The same weights, states of optimizers, histories and masks, bit for bit."""
    kept = estimator(**CASES[case]).fit(X, Y)
    monkeypatch.setattr(stacked_engine.StackedTeam, "can_train", lambda *args: False)
    anew = estimator(**CASES[case]).fit(X, Y)
    np.testing.assert_array_equal(kept.sam_masks_, anew.sam_masks_)
    np.testing.assert_array_equal(kept.sharpness_, anew.sharpness_)
    for a, b in zip(kept.estimators_, anew.estimators_):
        torch.testing.assert_close(
            [a.module_.state_dict(), a.optimizer_.state_dict()],
            [b.module_.state_dict(), b.optimizer_.state_dict()],
            rtol=0,
            atol=0,
        )
    for a, b in zip(kept.history_, anew.history_):
        without_times = [
            [{k: v for k, v in record.items() if k != "dur"} for record in history]
            for history in (a, b)
        ]
        assert without_times[0] == without_times[1]


def test_members_stopped_at_different_steps_continue_in_skorch_only():
    stop = EarlyStopping(monitor="train_loss", threshold=0.2, patience=2)
    options = {"max_epochs": 12, "callbacks": [("stop", stop)], "warmup_epochs": 0}
    clf = estimator(**options, selection="sharpest", lr=0.05).fit(X, Y)
    lengths = [len(history) for history in clf.history_]
    assert len(set(lengths)) > 1
    with pytest.raises(UnsupportedEngineError, match="Use engine='skorch'"):
        clf.partial_fit(X, Y)
    clf.set_params(engine="skorch").partial_fit(X, Y)
    assert [len(history) for history in clf.history_] == [n + 1 for n in lengths]
