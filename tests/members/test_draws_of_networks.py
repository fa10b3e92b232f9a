"""Random networks neither use nor change the global generators."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    load,
)
from tests.cases import global_generators, rest_slow, seed_generators
from tests.joint.diversified_cases import Diversified, table


class AlwaysDropout(nn.Module):
    """Dropout also in evaluation mode, before batch statistics."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.first = nn.Linear(n_features, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, n_classes)

    def forward(self, x):
        return self.last(self.norm(dropout(self.first(x), 0.5, training=True)))


def jitter(x):
    return x + 0.1 * torch.randn_like(x)


RULES = ("uniform_soup", "greedy_soup", "temperature", "mean_logit")
MLP_AND_JITTER = {"estimator": None, "selection": "random", "train_transform": jitter}
CASES = [
    *rest_slow([(DeepEnsembleClassifier, {"aggregation": rule}) for rule in RULES]),
    *rest_slow([(Diversified, {"aggregation": rule}) for rule in RULES]),
    (DeepEnsembleClassifier, {"early_stopping": 2}),
    (DeepEnsembleClassifier, {"weight_averaging": "uniform"}),
    (SharpBalanceEnsembleClassifier, {}),
    (SharpBalanceEnsembleClassifier, {"estimator": None}),
    (SharpBalanceEnsembleClassifier, MLP_AND_JITTER),
    (Diversified, {"estimator": None, "shared_trunk": lambda: AlwaysDropout(5, 6)}),
]


@pytest.mark.filterwarnings("ignore:.*set no temperature")
@pytest.mark.parametrize(("kind", "params"), CASES)
def test_fit_and_predict_do_not_use_global_generators(kind, params):
    X, y = table()
    defaults = {"estimator": AlwaysDropout, "validation_fraction": 0.2, "max_epochs": 3}
    probas = []
    for seed in (1, 2):
        clf = kind(n_estimators=2, random_state=0, device="cpu", **defaults | params)
        seed_generators(seed)
        before = global_generators()
        clf.fit(X, y)
        assert global_generators() == before
        torch.manual_seed(5)  # predictions are random too
        probas.append(clf.predict_proba(X))
    np.testing.assert_array_equal(*probas)


class RandomWidth(nn.Module):
    """The width and a factor are drawn with Python's and numpy's generators."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        width = random.randint(3, 300)
        self.factor = np.random.rand()  # noqa: NPY002
        self.first = nn.Linear(n_features, width)
        self.last = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.last(self.factor * self.first(x).relu())


def test_load_rebuilds_random_networks(tmp_path):
    X, y = table()
    clf = DeepEnsembleClassifier(
        RandomWidth, n_estimators=2, max_epochs=2, random_state=0, device="cpu"
    ).fit(X, y)
    clf.save(tmp_path / "model")
    before = global_generators()
    loaded = load(tmp_path / "model", module=RandomWidth)
    assert global_generators() == before
    np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
