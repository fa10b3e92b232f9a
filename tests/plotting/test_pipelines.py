"""Displays of an ensemble in a pipeline or a search."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_sharpbalance import MLP
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.plotting import (
    LossLandscapeDisplay,
    OODDisplay,
)
from tests.plotting.made_up import SMALL

FEW = SMALL | {"n_estimators": 2, "aggregation": "majority"}


@pytest.fixture(scope="module")
def fitted(digits):
    """Return a pipeline, its last step, and the samples that reach it."""
    pipe = make_pipeline(StandardScaler(), SharpBalance(MLP, **FEW))
    pipe.fit(digits.X, digits.y)
    X = pipe[0].transform(digits.X)
    return SimpleNamespace(pipe=pipe, inner=pipe[-1], X=X)


SHOWN = {
    "ood": lambda e, X, y: (
        OODDisplay.from_estimator(e, X[:120], X[120:], score="pds").scores_out
    ),
    "landscape": lambda e, X, y: (
        LossLandscapeDisplay.from_estimator(e, X, y, n_points=3, random_state=0).loss
    ),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_display_of_a_pipeline_equals_that_of_its_last_step(kind, fitted, digits):
    got = SHOWN[kind](fitted.pipe, digits.X, digits.y)
    want = SHOWN[kind](fitted.inner, fitted.X, digits.y)
    np.testing.assert_array_equal(got, want)
