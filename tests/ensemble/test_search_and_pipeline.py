"""Ensembles in searches, pipelines, calibration and scorers of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    ShuffleSplit,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.helper import SliceDataset, SliceDict
from torch import nn
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.metrics import SCORERS
from tests.cases import rest_slow

N = 90
SMALL = {
    "n_estimators": 2,
    "max_epochs": 4,
    "batch_size": 30,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (8,),
}


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int) + (X[:, 1] > 0.7)
    return X, np.array(["a", "b", "c"])[y]


def test_search_over_nested_parameters():
    X, y = table()
    grid = {
        "estimator__module__hidden": [(4,), (6,)],
        "selection__flat_ratio": [0.9],
        "sharpness": ["loss"],
    }
    few = SharpBalance(**{**SMALL, "max_epochs": 2})
    search = GridSearchCV(few, grid, cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 2
    best = search.best_estimator_
    assert best.sharpness == "loss"
    assert best.get_params()["selection__flat_ratio"] == 0.9
    hidden = search.best_params_["estimator__module__hidden"]
    assert best.estimators_[0].module_.module[1].out_features == hidden[0]


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


class Items(Dataset):
    """Pairs; count how often items are read."""

    def __init__(self, X, y):
        self.X, self.y, self.n_read = torch.as_tensor(X), y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.n_read += 1
        return self.X[i], self.y[i]


@pytest.mark.parametrize("labels", rest_slow(["sliced", "array"]))
def test_a_search_over_a_dataset(labels):
    X, _ = table()
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    items = Items(X.astype(np.float32), y)
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


def test_a_sliced_dataset_is_read_item_by_item():
    """Items may be random, so they are read in every epoch."""
    X, y = table()
    items = Items(X.astype(np.float32), y)
    clf = DeepEnsembleClassifier(**SMALL).fit(SliceDataset(items), y)
    assert items.n_read > SMALL["max_epochs"] * SMALL["n_estimators"] * N
    assert "X is not one array" in clf.engine_.reason


def test_sample_weights_in_a_pipeline():
    X, y = table()
    weight = np.random.default_rng(0).uniform(0.5, 2, N)
    pipeline = make_pipeline(StandardScaler(with_std=False), SharpBalance(**SMALL))
    pipeline.fit(X, y, sharpbalanceensembleclassifier__sample_weight=weight)
    alone = SharpBalance(**SMALL).fit(X - X.mean(0), y, sample_weight=weight)
    np.testing.assert_allclose(
        pipeline.predict_proba(X), alone.predict_proba(X - X.mean(0)), atol=1e-5
    )


def overfit():
    """Return an overconfident ensemble, and held-out samples."""
    X, y = table(120)
    labels = np.random.default_rng(1).permutation(y[:90])
    y = np.concatenate([labels, np.random.default_rng(2).permutation(y[90:])])
    options = {**SMALL, "max_epochs": 40, "estimator__module__hidden": (32,)}
    return SharpBalance(lr=0.1, **options), X, y


def test_calibration_by_temperature():
    clf, X, y = overfit()
    raw = clone(clf).fit(X[:90], y[:90])
    calibrated = CalibratedClassifierCV(clf, method="temperature", cv=2)
    calibrated.fit(X[:90], y[:90])
    loss = {
        name: log_loss(y[90:], model.predict_proba(X[90:]))
        for name, model in (("raw", raw), ("calibrated", calibrated))
    }
    assert loss["calibrated"] < loss["raw"]
    assert loss["calibrated"] < 1.2 * np.log(3)


def test_every_scorer_in_a_cross_validation():
    X, y = table(60)
    clf = DeepEnsembleClassifier(**{**SMALL, "n_estimators": 3, "max_epochs": 3})
    once = ShuffleSplit(1, test_size=0.5, random_state=0)
    scores = cross_validate(clf, X, y, cv=once, scoring=SCORERS, error_score="raise")
    for name in SCORERS:
        values = scores[f"test_{name}"]
        assert values.shape == (1,)
        assert np.isfinite(values).all(), name


@pytest.mark.parametrize("kind", [StackingClassifier, VotingClassifier])
def test_inside_other_ensembles(kind):
    X, y = table()
    parts = [("deep", SharpBalance(**SMALL)), ("linear", LogisticRegression())]
    options = {"cv": 2} if kind is StackingClassifier else {"voting": "soft"}
    clf = kind(parts, **options).fit(X, y)
    assert clf.score(X, y) > 0.5
