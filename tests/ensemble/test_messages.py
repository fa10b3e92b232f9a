"""Error messages for common mistakes name the cause and a remedy."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.compose import make_column_transformer
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

pl = pytest.importorskip("polars")

KINDS = [
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
]
SMALL = {"n_estimators": 2, "max_epochs": 1, "device": "cpu", "random_state": 0}
X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
y = np.arange(30) % 3
CITIES = np.array(["Bonn", "Ulm", "Jena"])[y]


def ensemble(kind=DeepEnsembleClassifier, **params):
    return kind(**SMALL, **params)


# Text in X ----------------------------------------------------------------------------

TABLE = pd.DataFrame({"a": X[:, 0], "city": CITIES})


@pytest.mark.parametrize("kind", KINDS)
def test_text_column_of_an_array_is_named_by_its_index(kind):
    message = r"1 of 2 columns: 1 \(such as 'Bonn'\).*DataFrame.*OneHotEncoder"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(kind).fit(np.array(TABLE, dtype=object), y)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_predict_names_a_text_column_after_a_fit_on_an_array(frame):
    clf = ensemble().fit(X, y)
    table = frame({"a": X[:, 0], "city": CITIES.tolist()})
    with pytest.raises(InvalidInputError, match=r"'city' .such as 'Bonn'.*to fit as"):
        clf.predict(table)


def test_list_of_many_text_columns_is_shortened():
    table = np.full((30, 9), "Ulm", dtype=object)
    with pytest.raises(InvalidInputError, match=r"9 of 9 columns: .*4 .*\.\.\.") as e:
        ensemble().fit(table, y)
    assert "5 (such" not in str(e.value)


def test_suggested_encoder_works():
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
        remainder="passthrough",
    )
    model = make_pipeline(encode, ensemble().set_params(max_epochs=30))
    assert model.fit(TABLE, y).score(TABLE, y) > 0.9


def test_other_errors_of_x_are_not_changed():
    with pytest.raises(ValueError, match="Input X contains NaN"):
        ensemble().fit(np.where(X > 0, X, np.nan), y)
    with pytest.raises(ValueError, match="inhomogeneous"):
        ensemble().fit([[1.0, 2.0], [3.0]] * 15, y)


# Labels -------------------------------------------------------------------------------

MISSING = {
    "None": np.array(["a", "b", None] * 10, dtype=object),
    "nan": np.array(["a", "b", np.nan] * 10, dtype=object),
    "NA": pd.Series(["a", "b", pd.NA] * 10, dtype="string"),
    "category": pd.Series(["a", "b", None] * 10, dtype="category"),
    "polars": pl.Series(["a", "b", None] * 10),
    "numbers": np.array([0, 1, np.nan] * 10),
    "NA of numbers": pd.Series([0, 1, pd.NA] * 10, dtype="Int64"),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_labels_are_counted(name):
    message = "y has no label for 10 of 30 samples, first in row 2. Remove these"
    with pytest.raises(InvalidInputError, match=message):
        ensemble().fit(X, MISSING[name])


SEVERAL = {
    "one-hot": np.eye(3, dtype=int)[y],
    "sparse": scipy.sparse.csr_matrix(np.eye(3, dtype=int)[y]),
    "lists": [["a", "b"], ["c"]] * 15,
    "tensor": torch.eye(3)[torch.as_tensor(y)],
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("kind", KINDS)
def test_multioutput_labels_raise_with_a_suggestion(kind, name):
    message = "one label per sample: .*MultiOutputClassifier"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(kind).fit(X, SEVERAL[name])


def test_suggested_multi_output_classifier_works():
    several = np.stack([y, y > 0], axis=1).astype(int)
    model = MultiOutputClassifier(ensemble()).fit(X, several)
    assert model.predict(X).shape == several.shape


# Optimizer and settings of the net ----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["optimizer", "estimator__optimizer"])
def test_optimizer_name_raises_with_the_class(kind, name):
    message = f"^{name} must be a class .* got 'adam'. Pass {name}=torch.optim.Adam,"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(kind, **{name: "adam"}).fit(X, y)


def test_optimizer_object_raises_with_its_class():
    optimizer = torch.optim.AdamW([torch.zeros(1)])
    message = "got an object of AdamW. Pass optimizer=torch.optim.AdamW"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(optimizer=optimizer).fit(X, y)


NET = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss)


@pytest.mark.parametrize("estimator", [None, MLP, NET])
@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("hidden", "module__hidden"),
        ("momentum", "optimizer__momentum"),
        ("label_smoothing", "criterion__label_smoothing"),
        ("max_epoch", "max_epochs"),
    ],
)
def test_unknown_setting_of_the_net_raises_with_a_suggestion(estimator, name, offered):
    clf = ensemble(estimator=estimator, lr=0.1, **{f"estimator__{name}": 5})
    message = f"parameter 'estimator__{name}'. Did you mean 'estimator__{offered}'"
    with pytest.raises(InvalidInputError, match=message) as caught:
        clf.fit(X, y)
    assert " _" not in str(caught.value)  # no private names


def test_set_params_of_a_net_raises_with_a_suggestion():
    message = "Did you mean 'estimator__module__hidden'"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(estimator=NET).set_params(estimator__hidden=5)


def test_known_settings_of_the_net_are_accepted():
    clf = ensemble(
        estimator__module__hidden=(5,),
        estimator__iterator_train__num_workers=0,
        estimator__lr=0.2,
    )
    assert clf.fit(X, y).estimators_[0].lr == 0.2
    clf = ensemble(estimator=NET).set_params(estimator__callbacks__print_log=None)
    clf.set_params(estimator__optimizer__momentum=0.5)


# Aggregation --------------------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch):
    """Fail if an epoch is trained."""

    def refuse(*args, **kwargs):
        raise AssertionError("The training has begun.")

    target = "sklearn_sharpbalance.training.loop.TrainingLoop.run"
    monkeypatch.setattr(target, refuse)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda logits: logits.softmax(-1), "(2, 5, 3).*AttributeError.*numpy array"),
        (lambda logits: logits, r"shape \(5, 3\).*got shape \(2, 5, 3\)"),
        (lambda logits: logits.mean(0), "must return probabilities"),
    ],
)
def test_aggregation_function_is_checked_before_training(
    kind, function, message, no_training
):
    with pytest.raises(InvalidInputError, match=message):
        ensemble(kind, aggregation=function).fit(X, y)


def test_an_aggregation_function_may_return_a_tensor():
    weight = torch.ones(2, 1, 1, requires_grad=True)

    def mean(logits):
        return (weight * torch.as_tensor(logits).softmax(-1)).mean(0)

    clf = ensemble(aggregation=mean).fit(X, y)
    expected = clf.member_predict_proba(X).mean(axis=0)
    np.testing.assert_allclose(clf.predict_proba(X), expected, rtol=1e-6)


# Dictionaries -------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, left, right):
        return self.layer(left) - self.layer(right)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_keys_of_a_dictionary_raise_with_the_arguments(kind):
    message = r"dictionary of 'left', 'rigth', .*Two.forward .*takes \(left, right\)"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(kind, estimator=Two).fit({"left": X, "rigth": X}, y)


def test_module_that_fails_on_a_dictionary_raises_with_shapes():
    message = r"failed on a batch of shapes \{'left': \(2, 2\), 'right': \(2, 1\)\}"
    with pytest.raises(InvalidInputError, match=message):
        ensemble(estimator=Two).fit({"left": X, "right": X[:, :1]}, y)
