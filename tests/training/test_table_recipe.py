"""Default optimizer, learning rate, weight decay and epochs for tables."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.training.net_building import settings_in_force
from sklearn_sharpbalance.training.prepare import prepare
from tests.cases import rest_slow

X, y = make_classification(60, 5, random_state=0)
ADAMW = {"optimizer": "AdamW", "lr": 0.003, "weight_decay": 3.0, "max_epochs": 40}
SGD = {"optimizer": "SGD", "lr": 0.1, "weight_decay": 5e-4, "max_epochs": 50}


def settings(X, y, kind=DeepEnsembleClassifier, **params):
    """Return the settings of a fit, without the training."""
    clf = kind(device="cpu", random_state=0, **params)
    return settings_in_force(prepare(clf, X, y, None))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ADAMW),
        ({"max_epochs": 7}, {**ADAMW, "max_epochs": 7}),
        ({"estimator__max_epochs": 7}, {**ADAMW, "max_epochs": 7}),
        ({"estimator__module__hidden": (3,)}, ADAMW),
        # A setting of the user leaves the others at the default of the optimizer.
        ({"lr": 0.02}, {**ADAMW, "lr": 0.02}),
        ({"estimator__lr": 0.02}, {**ADAMW, "lr": 0.02}),
        ({"estimator__optimizer__lr": 0.02}, {**ADAMW, "lr": 0.02}),
        ({"estimator__optimizer__weight_decay": 0.1}, {**ADAMW, "weight_decay": 0.1}),
        ({"estimator__optimizer__amsgrad": True}, ADAMW),
        ({"member_params": [{"lr": 0.1}] * 3}, ADAMW),
        ({"optimizer": torch.optim.SGD}, SGD),
        ({"estimator__optimizer": torch.optim.SGD, "lr": 0.2}, {**SGD, "lr": 0.2}),
        ({"optimizer": torch.optim.Adam}, {"lr": 1e-3, "weight_decay": 0.0}),
        ({"estimator": MLP}, SGD),
    ],
)
def test_user_settings_replace_the_defaults(params, expected):
    assert expected.items() <= settings(X, y, **params).items()


def test_options_of_sgd_need_sgd():
    with pytest.raises(InvalidInputError, match="momentum is not an option of AdamW"):
        settings(X, y, estimator__optimizer__momentum=0.9)


@pytest.mark.parametrize(
    ("params", "sam", "rho"),
    [
        ({}, "momentum_sam", 0.1),
        ({"rho": 0.3}, "momentum_sam", 0.3),
        ({"sam": "look_sam", "estimator__optimizer__alpha": 0.2}, "look_sam", 0.05),
        ({"selection": "all"}, "sam", 0.05),
        ({"optimizer": torch.optim.SGD}, "sam", 0.05),
    ],
)
def test_the_step_is_momentum_sam(params, sam, rho):
    found = settings(X, y, SharpBalance, **params)
    assert (found["sam"], found["rho"]) == (sam, rho)


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "n_classes", "expected"),
    [
        (60, 5, 2, {"weight_decay": 3.0, "max_epochs": 40}),
        (500, 5, 2, {"weight_decay": 1.5, "max_epochs": 28}),
        (2000, 5, 2, {"weight_decay": 1.0, "max_epochs": 20}),
        (2000, 5, 4, {"weight_decay": 1.0, "max_epochs": 40, "batch_size": 128}),
        (80_000, 2, 2, {"weight_decay": 0.125, "max_epochs": 20, "batch_size": 512}),
        (400_000, 1, 2, {"weight_decay": 0.025, "max_epochs": 8, "batch_size": 1024}),
    ],
)
def test_defaults_depend_on_rows_columns_and_classes(
    n_rows, n_columns, n_classes, expected
):
    table = np.random.default_rng(0).standard_normal((n_rows, n_columns))
    labels = np.arange(n_rows) % n_classes
    assert expected.items() <= settings(table, labels).items()


def test_held_out_rows_are_not_counted():
    table, labels = np.tile(X, (10, 1)), np.tile(y, 10)
    kept = settings(table, labels, validation_fraction=0.5, early_stopping=5)
    assert kept["max_epochs"] == round(20 / 0.3**0.5)


def test_partial_fit_keeps_the_first_decay_and_a_constant_rate():
    clf = DeepEnsembleClassifier(device="cpu", random_state=0)
    clf.partial_fit(X, y, classes=[0, 1])
    first = dict(clf.settings_)
    clf.partial_fit(np.tile(X, (300, 1)), np.tile(y, 300))
    assert clf.settings_ == first
    assert first["weight_decay"] == 3.0


def separable(n_rows=200):
    table = np.random.default_rng(0).standard_normal((n_rows, 4))
    return table, (table[:, 0] > 0).astype(int)


@pytest.mark.parametrize("value", rest_slow([-1e6, 1e3]))
def test_one_outlier_does_not_change_the_accuracy(value):
    table, labels = separable()
    table[17] = value
    clf = SharpBalance(random_state=0, device="cpu").fit(table[:150], labels[:150])
    assert clf.score(table[150:], labels[150:]) >= 0.94


def test_noisy_labels_do_not_make_probabilities_overconfident():
    """The best log-loss with a fifth of the labels replaced is that of the noise."""
    table, labels = separable(1500)
    rng = np.random.default_rng(1)
    wrong = rng.random(len(labels)) < 0.2
    labels = np.where(wrong, 1 - labels, labels)
    parts = train_test_split(table, labels, test_size=500, random_state=0)
    X_train, X_test, y_train, y_test = parts
    few = {"n_estimators": 2, "random_state": 0, "device": "cpu"}
    clf = SharpBalance(**few).fit(X_train, y_train)
    best = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8))
    assert log_loss(y_test, clf.predict_proba(X_test)) < 1.15 * best
