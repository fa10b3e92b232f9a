"""Settings that change between calls of partial_fit are used, or raise."""

import pickle

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier, load
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM
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


# Settings that cannot change ---------------------------------------------------------


class Scaled(nn.Module):
    """A module with arrays, tensors and functions as arguments."""

    def __init__(self, by, tensor, act, n_features=5, n_classes=3):
        super().__init__()
        self.layer, self.act = nn.Linear(n_features, n_classes), act
        self.register_buffer("by", torch.as_tensor(by))

    def forward(self, x):
        return self.layer(self.act(x * self.by))


def double(x):
    return 2 * x


def small():
    return SharpBalance(**FEW, **HIDDEN, optimizer=torch.optim.SGD, lr=0.1)


def apart(member_params):
    return DeepEnsembleClassifier(
        MLP, 2, member_params=member_params, random_state=0, device="cpu"
    )


def prototype(width):
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))


CHANGES = {
    "members": (small, {"n_estimators": 3}, r"n_estimators was 2 and is 3\."),
    "step": (small, {"sam": "gsam"}, r"sam was .*\.SAM and is .*\.GSAM\."),
    "optimizer": (
        small,
        {"optimizer": torch.optim.AdamW},
        r"settings: optimizer was torch.optim.sgd.SGD and is torch.*AdamW",
    ),
    "statistics": (small, {"standardize": False}, "standardize was True and is False"),
    "apart": (
        small,
        {"member_params": [{"lr": 0.1}, {}]},
        r"member_params was None and is \[{'lr': 0.1}, {}\]",
    ),
    "width": (
        small,
        {"estimator__module__hidden": (7,)},
        r"settings: estimator__module__hidden was \(6\) and is \(7\)\. Restore",
    ),
    "of an optimizer": (
        small,
        {"estimator__optimizer__momentum": 0.5},
        "estimator__optimizer__momentum was 0.9 and is 0.5",
    ),
    "criterion": (
        small,
        {"estimator__criterion": nn.MultiMarginLoss},
        "estimator__criterion was .*CrossEntropyLoss and is .*MultiMarginLoss",
    ),
    "module": (
        lambda: DeepEnsembleClassifier(MLP, 2, random_state=0),
        {"estimator": Scaled, "estimator__module__act": double},
        "estimator was .*MLP and is .*Scaled",
    ),
    "instance": (
        lambda: DeepEnsembleClassifier(prototype(6), 2, random_state=0),
        {"estimator": prototype(7)},
        "estimator was .Sequential.*out_features=6",
    ),
}


SIMILAR = {"of an optimizer", "statistics", "step"}


@pytest.mark.parametrize("case", rest_slow(CHANGES, CHANGES.keys() - SIMILAR))
def test_changed_settings_of_members_raise(case):
    make, change, message = CHANGES[case]
    clf = make().partial_fit(X, Y)
    given = {name: clf.get_params(deep=False).get(name) for name in change}
    before, n_iter = clf.predict_proba(X), clf.n_iter_
    with pytest.raises(InvalidInputError, match=message) as caught:
        clf.set_params(**change).partial_fit(X, Y)
    assert "start again with fit or with a clone" in str(caught.value)
    np.testing.assert_array_equal(clf.predict_proba(X), before)
    assert clf.n_iter_ == n_iter
    if not any(name.startswith("estimator__") for name in change):
        clf.set_params(**given).partial_fit(X, Y)  # restored
        plain = make().partial_fit(X, Y).partial_fit(X, Y)
        np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))


def scaled():
    return DeepEnsembleClassifier(
        Scaled,
        2,
        estimator__module__by=np.ones(5, np.float32),
        estimator__module__tensor=torch.arange(3.0),
        estimator__module__act=double,
        random_state=0,
        device="cpu",
    )


KEPT = {
    "plain": (small, {}),
    "the same again": (
        small,
        {"n_estimators": np.int64(2), "sam": SAM, "optimizer": torch.optim.SGD},
    ),
    "arrays": (
        scaled,
        {
            "estimator__module__by": np.ones(5, np.float32),
            "estimator__module__tensor": torch.arange(3.0),
        },
    ),
    "instance": (
        lambda: DeepEnsembleClassifier(prototype(6), 2, random_state=0, device="cpu"),
        {"estimator": prototype(6)},
    ),
    "given": (
        lambda: apart([{"lr": 0.1}, {"module__hidden": (4,)}]),
        {"member_params": ({"lr": 0.1}, {"module__hidden": (4,)})},
    ),
}


DIFFERENT = {"arrays", "given", "the same again"}


@pytest.mark.parametrize("case", rest_slow(KEPT, DIFFERENT))
def test_equal_settings_are_accepted(case, tmp_path):
    """After set_params, and from a pickle or a file."""
    make, same = KEPT[case]
    expected = make().partial_fit(X, Y).partial_fit(X, Y).predict_proba(X)
    clf = make().partial_fit(X, Y)
    pickled = pickle.dumps(clf)
    clf.save(tmp_path / "model")
    again = {
        "arrays": {"module": Scaled, "estimator__module__act": double},
        "instance": {"module": prototype(6)},
    }
    ways = {
        "set": clf.set_params(**same),
        "pickle": pickle.loads(pickled),
        "file": load(tmp_path / "model", **again.get(case, {})),
    }
    for way, clf in ways.items():
        got = clf.partial_fit(X, Y).predict_proba(X)
        np.testing.assert_array_equal(got, expected, err_msg=way)


def test_standardize_has_no_effect_on_dictionaries():
    class Named(MLP):
        def forward(self, x):
            return super().forward(x)

    clf = DeepEnsembleClassifier(Named, 2, estimator__module__n_features=5)
    clf.partial_fit({"x": X}, Y).set_params(standardize=False).partial_fit({"x": X}, Y)
    assert clf.n_iter_ == 2
