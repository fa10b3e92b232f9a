"""The estimator of joint training: parameters, trunks, randomness, persistence."""

import pickle

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import DiversifiedEnsembleClassifier as Diversified
from sklearn_sharpbalance.aggregation.nets import member_logits
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import TwoInputs, rest_slow
from tests.joint.diversified_cases import Looped, diversified, table


class Trunk(nn.Module):
    """Count the samples; has running statistics that must not change."""

    def __init__(self, width=6):
        super().__init__()
        self.linear = nn.Linear(5, width)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += len(x)
        return self.norm(self.linear(x)).tanh()


def test_augmented_samples_pass_the_trunk_in_every_epoch():
    X, y = table()
    clf = diversified(shared_trunk=Trunk(), train_transform=lambda x: x, max_epochs=3)
    clf.fit(X, y)  # and once for the statistics of features
    assert clf.trunk_.module.seen == 4 * len(X)


@pytest.mark.parametrize("head", [None, Looped])
def test_members_with_a_trunk_accept_samples(head):
    X, y = table()
    clf = diversified(estimator=head, shared_trunk=Trunk()).fit(X, y)
    probas = clf.member_predict_proba(X)
    for net, want in zip(clf.estimators_, probas):
        logits = net.forward(X).softmax(1)
        np.testing.assert_allclose(logits, want, atol=1e-5)
        assert len(net.history) == 4
    clf.estimators_[0].module_.train()
    assert not clf.trunk_.module.training


def test_trunk_from_a_function_depends_on_random_state():
    X, y = table()
    one, two = (diversified(shared_trunk=Trunk).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))
    other = diversified(shared_trunk=Trunk, random_state=1).fit(X, y)
    a, b = (clf.trunk_.module.linear.weight for clf in (one, other))
    assert (a != b).any()


@pytest.mark.parametrize("trunk", rest_slow([None, Trunk, Trunk()], keep=2))
def test_warm_start_continues_from_the_fitted_weights(trunk):
    X, y = table()
    clf = diversified(shared_trunk=trunk, warm_start=True, max_epochs=10).fit(X, y)
    want = clf.predict_proba(X)
    clf.set_params(lr=1e-12, max_epochs=1, random_state=5).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=1e-5)
    clf.set_params(estimator__module__hidden=(3,))
    with pytest.raises(InvalidInputError, match="warm_start=True starts from"):
        clf.fit(X, y)


def test_warm_start_with_another_trunk_raises():
    X, y = table()
    clf = diversified(shared_trunk=Trunk, warm_start=True, max_epochs=1).fit(X, y)
    clf.set_params(shared_trunk=lambda: nn.Linear(5, 6))
    with pytest.raises(InvalidInputError, match="shared_trunk makes another network"):
        clf.fit(X, y)


class Projected(nn.Module):
    """Random features in a non-persistent buffer."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        drawn = torch.randn(n_features, 16)
        self.register_buffer("drawn", drawn, persistent=False)
        self.last = nn.Linear(16, n_classes)

    def forward(self, x):
        return self.last((x @ self.drawn).tanh())


@pytest.mark.parametrize("kind", [DeepEnsembleClassifier, Diversified])
def test_warm_start_keeps_non_persistent_buffers(kind):
    X, y = table()
    params = {"standardize": False, "max_epochs": 1, "random_state": 0}
    clf = kind(Projected, warm_start=True, **params).fit(X, y)
    want = clf.predict_proba(X)
    clf.set_params(lr=1e-12, random_state=5).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), want, atol=1e-5)


def test_members_have_buffers_and_history_of_their_heads():
    """Non-persistent buffers, and values recorded by callbacks."""

    class Recorder(Callback):
        def on_epoch_end(self, net, **kwargs):
            self.seen = len(net.history)

    X, y = table()
    common = {"estimator": Projected, "callbacks": [("recorder", Recorder())]}
    for trunk in (None, Trunk, Projected(5, 6)):
        clf = diversified(shared_trunk=trunk, **common).fit(X, y)
        whole = member_logits(clf.estimators_, X)
        np.testing.assert_allclose(
            whole, clf.member_decision_function(X), rtol=1e-5, atol=1e-5
        )
        for net in clf.estimators_:
            assert dict(net.callbacks_)["recorder"].seen == 4


def test_one_member():
    X, y = table()
    one = diversified(n_estimators=1).fit(X, y)
    none = diversified(n_estimators=1, diversity_weight=0).fit(X, y)
    np.testing.assert_array_equal(one.predict_proba(X), none.predict_proba(X))


def test_dictionaries_are_passed_as_keywords():
    X, y = table()

    parts = {"a": X[:, :2], "b": X[:, 2:]}
    clf = diversified(estimator=TwoInputs, loss="divdis", lr=0.1)
    assert clf.fit(parts, y, X_unlabeled=parts).score(parts, y) > 0.7
    with pytest.raises(
        InvalidInputError, match=r"\['a'\] and X is a dictionary of \['a',"
    ):
        clf.fit(parts, y, X_unlabeled={"a": X[:, :2]})


@pytest.mark.gpu
@pytest.mark.parametrize("module", [None, Looped])
@pytest.mark.parametrize("loss", ["sed", "a2d", "divdis"])
def test_gpu_equals_cpu(loss, module):
    X, y = table()
    params = {"loss": loss, "estimator": module, "shared_trunk": Trunk()}
    probas = []
    for device in ("cpu", "cuda"):
        clf = diversified(**params, device=device).fit(X, y, X_unlabeled=X + 1)
        probas.append(pickle.loads(pickle.dumps(clf)).predict_proba(X))
    np.testing.assert_allclose(*probas, atol=2e-3)


@pytest.mark.parametrize("weight", [None, {0: 1.0, 1: 2.0, 2: 5.0}])
def test_divdis_if_the_last_class_is_held_out(weight):
    X, _ = table()
    y = np.arange(len(X)) % 2
    y[[3, 50]] = 2
    clf = diversified(loss="divdis", validation_fraction=0.8, class_weight=weight)
    clf.fit(X, y, X_unlabeled=X + 1)
    proba = clf.predict_proba(X)
    assert proba.shape == (len(X), 3)
    assert np.isfinite(proba).all()


class WritesToItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x):
        return self.linear(x.mul_(2).add_(1))


def test_trunk_that_works_in_place_does_not_change_samples():
    X, y = table()
    clf = diversified(shared_trunk=WritesToItsInput()).fit(X, y)
    net, given = clf.estimators_[0], torch.tensor(X)
    once, twice = (net.infer(given).detach() for _ in range(2))
    torch.testing.assert_close(given, torch.tensor(X), rtol=0, atol=0)
    torch.testing.assert_close(once, twice, rtol=0, atol=0)
