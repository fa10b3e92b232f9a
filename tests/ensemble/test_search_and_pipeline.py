"""Ensembles in searches, pipelines, calibration and scorers of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from skorch.helper import SliceDataset, SliceDict
from torch import nn
from torch.utils.data import Subset

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from tests.cases import SMALL, Items, rest_slow

N = 90


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.7)
    return X, np.array(["a", "b", "c"])[y]


class TwoInputs(nn.Module):
    def __init__(self, n_classes, width=8):
        super().__init__()
        self.left, self.right = nn.Linear(2, width), nn.Linear(2, width)
        self.out = nn.Linear(width, n_classes)

    def forward(self, left, right):
        return self.out(torch.relu(self.left(left) + self.right(right)))


def test_a_search_over_a_dictionary():
    X, y = table()
    X = X.astype(np.float32)
    both = SliceDict(left=X[:, :2], right=X[:, 2:])
    params = {**SMALL, "estimator__module__width": 4}
    del params["estimator__module__hidden"]
    clf = SharpBalance(TwoInputs, **params)
    grid = {"estimator__module__width": [4, 8]}
    search = GridSearchCV(clf, grid, cv=2, error_score="raise").fit(both, y)
    assert len(search.cv_results_["params"]) == 2
    assert search.predict(both).shape == y.shape
    best = clone(clf).set_params(**search.best_params_)
    plain = best.fit(dict(both), y)
    np.testing.assert_array_equal(
        search.predict_proba(both), plain.predict_proba(dict(both))
    )


def items_of(X, y):
    return Items(lambda i: (torch.as_tensor(X[i], dtype=torch.float32), y[i]), N)


@pytest.mark.parametrize("labels", rest_slow(["sliced", "array"]))
def test_a_search_over_a_dataset(labels):
    X, _ = table()
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    items = items_of(X, y)
    target = y if labels == "array" else SliceDataset(items, idx=1)
    grid = {"rho": [0.01, 0.1]}
    clf = SharpBalance(**{**SMALL, "max_epochs": 2})
    search = GridSearchCV(clf, grid, cv=2, error_score="raise")
    search.fit(SliceDataset(items), target)
    plain = clone(clf).set_params(**search.best_params_).fit(items)
    np.testing.assert_array_equal(
        search.predict_proba(SliceDataset(items)), plain.predict_proba(items)
    )
    half = np.arange(0, N, 2)
    np.testing.assert_array_equal(
        search.predict(SliceDataset(items)[half]), plain.predict(Subset(items, half))
    )


def test_a_sliced_dataset_may_be_read_in_every_epoch():
    X, y = table()
    items = items_of(X, y)
    clf = DeepEnsembleClassifier(**SMALL, n_buffer=0).fit(SliceDataset(items), y)
    assert len(items.read) > SMALL["max_epochs"] * SMALL["n_estimators"] * N
    assert "X is not one array" in clf.engine_.reason


DEEP = SharpBalance(**SMALL | {"max_epochs": 20})
PARTS = [("deep", DEEP), ("linear", LogisticRegression())]


@pytest.mark.parametrize(
    "outer",
    [
        StackingClassifier(PARTS, cv=2),
        VotingClassifier(PARTS, voting="soft"),
        CalibratedClassifierCV(DEEP, method="temperature", cv=2),
    ],
)
def test_inside_other_ensembles(outer):
    X, y = table()
    assert clone(outer).fit(X, y).score(X, y) > 0.6
