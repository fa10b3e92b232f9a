"""Memory stays in proportion for very many classes and very large pictures.

Each fit runs in its own process, whose peak memory is measured.
"""

import numpy as np
import pytest
import torch

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from tests.training.killing import MB, peak_of

FEW = {"n_estimators": 1, "max_epochs": 1, "device": "cpu", "random_state": 0}


class Coarse(torch.nn.Module):
    """A small network whose first layer has patches of 16 x 16."""

    def __init__(self, in_channels, n_classes):
        super().__init__()
        self.patches = torch.nn.Conv2d(in_channels, 4, 16, stride=16)
        self.last = torch.nn.Linear(4, n_classes)

    def forward(self, x):
        return self.last(self.patches(x).relu().mean((2, 3)))


def huge_pictures():
    X = np.random.default_rng(0).integers(0, 255, (2, 3000, 3000), dtype=np.uint8)
    clf = SharpBalance(Coarse, **FEW, batch_size=1, warmup_epochs=0)

    def run():
        assert clf.fit(X, [0, 1]).predict_proba(X).shape == (2, 2)

    return run


@pytest.mark.slow
def test_huge_pictures(tmp_path):
    """One picture is 36 MB in float32; a pass needs a few copies of it."""
    assert peak_of(huge_pictures, tmp_path) < 16 * 36 * MB


def one_call_of_many_classes():
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    two = {**FEW, "n_estimators": 2, "batch_size": 16, "warmup_epochs": 0}
    clf = SharpBalance(**two, estimator__module__hidden=(2,))

    def run():
        clf.partial_fit(X, np.arange(30) * 3000, classes=np.arange(10**5))
        assert clf.sharpness_.shape == (2, 30)
        assert clf.predict_proba(X).shape == (30, 10**5)

    return run


@pytest.mark.slow
def test_a_hundred_thousand_classes(tmp_path):
    """Logits of 30 samples are 12 MB, of a batch of two members 13 MB."""
    assert peak_of(one_call_of_many_classes, tmp_path) < 400 * MB


def fit_many_classes():
    n = 10**5
    X = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    clf = DeepEnsembleClassifier(**FEW, batch_size=200, estimator__module__hidden=(2,))

    def run():
        clf.fit(X, np.arange(n) * 3 - 7)
        assert clf.predict_proba(X[:3]).shape == (3, n)
        assert clf.classes_[-1] == 3 * n - 10

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_a_fit_of_a_hundred_thousand_classes(tmp_path):
    """Logits of a batch are 80 MB; one-hot labels would be 40 GB."""
    assert peak_of(fit_many_classes, tmp_path, patience=900) < 800 * MB
