"""Fits and predictions in threads equal those made one after the other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier
from tests.cases import clusters

X, y = clusters()


def module():
    """A module with dropout and batch norm."""
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def fit(seed):
    clf = DeepEnsembleClassifier(module, n_estimators=2, max_epochs=3)
    return clf.set_params(random_state=seed).fit(X, y)


def in_threads(function, arguments):
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(function, arguments))


def test_fits_in_threads_equal_serial_fits():
    alone = [fit(seed).predict_proba(X) for seed in range(4)]
    before = torch.get_rng_state()
    together = in_threads(lambda seed: fit(seed).predict_proba(X), range(4))
    np.testing.assert_array_equal(together, alone)
    assert torch.equal(torch.get_rng_state(), before)


def test_predictions_in_threads_equal_serial_predictions():
    clf = fit(0)
    alone = fit(0).predict_proba(X)
    buffers = [buffer.clone() for buffer in clf.estimators_[0].module_.buffers()]
    for proba in in_threads(lambda _: clf.predict_proba(X), range(8)):
        np.testing.assert_array_equal(proba, alone)
    for before, after in zip(buffers, clf.estimators_[0].module_.buffers()):
        assert torch.equal(before, after)
