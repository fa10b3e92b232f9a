"""A criterion may be an object as well as a class."""

import numpy as np
import pytest
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    load,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import KINDS, SMALL

FEW = SMALL | {"max_epochs": 2, "estimator__module__hidden": (6,)}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = np.arange(60) % 3


def smooth(amount=0.3):
    return nn.CrossEntropyLoss(label_smoothing=amount)


def configured():
    return NeuralNetClassifier(MLP, criterion=smooth(), module__hidden=(6,), lr=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_object_equals_the_class_with_its_arguments(kind):
    given = smooth()
    made = kind(**FEW, estimator__criterion=given).fit(X, Y)
    named = kind(**FEW, estimator__criterion__label_smoothing=0.3).fit(X, Y)
    np.testing.assert_allclose(made.predict_proba(X), named.predict_proba(X), 1e-5)
    plain = kind(**FEW).fit(X, Y)
    assert not np.allclose(made.predict_proba(X), plain.predict_proba(X), 1e-3)
    criteria = {id(net.criterion_) for net in made.estimators_} | {id(given)}
    assert len(criteria) == 3  # neither shared by members nor the user's object
    assert made.estimator__criterion is given
    assert given.reduction == "mean"


@pytest.mark.parametrize("how", ["nested", "configured"])
def test_load_requires_the_object(how, tmp_path):
    clf = DeepEnsembleClassifier(**FEW, estimator__criterion=smooth())
    if how == "configured":
        few = {k: v for k, v in FEW.items() if "__" not in k}
        clf = DeepEnsembleClassifier(configured(), **few)
    clf.fit(X, Y).save(tmp_path / "model")
    message = r"cannot store: estimator__criterion \(object torch.*Pass it again"
    with pytest.raises(InvalidInputError, match=message):
        load(tmp_path / "model")
    again = load(tmp_path / "model", estimator__criterion=smooth())
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    clf.partial_fit(X, Y)
    again.partial_fit(X, Y)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    clone(again).fit(X, Y)


BESIDE = {
    "nested": lambda: DeepEnsembleClassifier(
        **FEW, estimator__criterion=smooth(), estimator__criterion__ignore_index=7
    ),
    "configured": lambda: DeepEnsembleClassifier(
        configured().set_params(criterion__ignore_index=7)
    ),
    "joint": lambda: DiversifiedEnsembleClassifier(
        **FEW, estimator__criterion=smooth(), estimator__criterion__ignore_index=7
    ),
}


@pytest.mark.parametrize("how", BESIDE)
def test_arguments_in_addition_to_an_object_raise(how):
    """skorch would build a new criterion from these arguments only."""
    message = "criterion__ignore_index.*criterion is an instance.*ass its class to give"
    with pytest.raises(InvalidInputError, match=message):
        BESIDE[how]().fit(X, Y)


def net_of_classes(**params):
    few = {k: v for k, v in FEW.items() if "__" not in k}
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, lr=0.1, **params)
    return DeepEnsembleClassifier(net, **few)


def test_set_params_of_a_configured_net_accepts_an_object():
    clf = net_of_classes(module__hidden=(6,))
    given, net = smooth(), clf.estimator
    clf.set_params(estimator__criterion=given, estimator__lr=0.2)
    assert clf.get_params()["estimator__criterion"] is given
    assert clf.estimator.lr == 0.2
    assert net.criterion is nn.CrossEntropyLoss  # the user's net is not changed
    expected = DeepEnsembleClassifier(configured().set_params(lr=0.2))
    expected.set_params(**{k: v for k, v in FEW.items() if "__" not in k})
    for each in (clf, clone(clf), expected):
        each.fit(X, Y)
    np.testing.assert_array_equal(clf.predict_proba(X), expected.predict_proba(X))
    clf.set_params(estimator__criterion=nn.CrossEntropyLoss).fit(X, Y)
    assert clf.estimators_[0].criterion_.label_smoothing == 0


def test_set_params_of_a_configured_net_accepts_a_module():
    model = MLP(5, 3, hidden=(4,))
    clf = net_of_classes().set_params(estimator__module=model).fit(X, Y)
    assert clf.estimators_[0].module_.module[1].out_features == 4
