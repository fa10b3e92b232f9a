"""Settings that change between calls of partial_fit are used, or raise."""

import numpy as np
import pytest
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import rest_slow

FEW = {
    "n_estimators": 2,
    "max_epochs": 8,
    "warmup_epochs": 2,
    "batch_size": 20,
    "random_state": 0,
    "device": "cpu",
}
HIDDEN = {"estimator__module__hidden": (6,)}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.8)
CALLED = []


class PrintsWord(Callback):
    def __init__(self, word):
        self.word = word

    def on_epoch_end(self, net, **kwargs):
        CALLED.append(self.word)


def configured(**params):
    return NeuralNetClassifier(
        MLP, criterion=nn.CrossEntropyLoss, module__hidden=(6,), **params
    )


def words(clf, **params):
    """Return what the next call prints."""
    CALLED.clear()
    clf.set_params(**params).partial_fit(X, Y)
    return sorted(CALLED)


def rates(clf):
    return [record["lr"] for record in clf.history_[0]]


def check_refused(clf, match, **params):
    """Return the error of the next call, and check that nothing changed."""
    before, n_iter = clf.predict_proba(X), clf.n_iter_
    with pytest.raises(InvalidInputError, match=match):
        clf.set_params(**params).partial_fit(X, Y)
    np.testing.assert_array_equal(clf.predict_proba(X), before)
    assert clf.n_iter_ == n_iter


@pytest.mark.parametrize(
    ("first", "engine"),
    rest_slow(
        [
            ("fit", "stacked"),
            ("partial_fit", "skorch"),
            ("fit", "skorch"),
            ("partial_fit", "stacked"),
        ],
        keep=[("partial_fit", "skorch"), ("partial_fit", "stacked")],
    ),
)
def test_callbacks_of_the_current_call_are_used(first, engine):
    clf = SharpBalance(**FEW, **HIDDEN, engine=engine, callbacks=[PrintsWord("a")])
    getattr(clf, first)(X, Y)
    assert words(clf) == ["a", "a"]
    assert words(clf, callbacks=[PrintsWord("b"), ("c", PrintsWord("c"))]) == [*"bbcc"]
    assert words(clf, callbacks=None) == []
    assert words(clf, callbacks=[PrintsWord("d")]) == ["d", "d"]
    assert clf.estimators_[0].callbacks_[0][1].word == "d"


MAKERS = {
    "nested": lambda: SharpBalance(**FEW, **HIDDEN, estimator__optimizer__lr=0.1),
    "configured": lambda: SharpBalance(configured(optimizer__lr=0.1), **FEW),
}


@pytest.mark.parametrize("how", MAKERS)
def test_second_learning_rate_raises_in_any_call(how):
    message = r"lr=0\.5 has no effect, because the net has optimizer__lr=0\.1"
    with pytest.raises(InvalidInputError, match=message):
        MAKERS[how]().set_params(lr=0.5).partial_fit(X, Y)
    clf = MAKERS[how]().partial_fit(X, Y)
    check_refused(clf, message, lr=0.5)
    clf.set_params(lr=0.1).partial_fit(X, Y)  # the same value twice
    assert rates(clf) == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("how", MAKERS)
def test_the_rate_of_the_optimizer_may_change(how):
    clf, plain = MAKERS[how](), SharpBalance(**FEW, **HIDDEN, lr=0.1)
    if how == "configured":
        plain = SharpBalance(configured(), **FEW, lr=0.1)
    for rate in (0.1, 0.02, 0.02):
        clf.set_params(estimator__optimizer__lr=rate).partial_fit(X, Y)
        plain.set_params(lr=rate).partial_fit(X, Y)
    assert rates(clf) == pytest.approx([0.1, 0.02, 0.02])
    np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))


def test_second_batch_size_raises_in_any_call():
    net = configured(iterator_train__batch_size=20)
    clf = SharpBalance(net, **FEW).partial_fit(X, Y)
    check_refused(clf, "iterator_train__batch_size=20 is not used", batch_size=10)
