"""Validation samples without finite logits count as wrong and are otherwise ignored."""

from itertools import product

import numpy as np
import pytest

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.data.labels import is_right
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from tests.cases import rest_slow
from tests.training.test_early_stopping import SMALL

OPTIONS = {**SMALL, "max_epochs": 6, "early_stopping": 6, "standardize": False}
pytestmark = pytest.mark.filterwarnings("ignore:.*no finite logits")


def table(n=60, apart=8):
    """Return two classes, as a network without standardisation takes them."""
    y = np.arange(n) % 2
    X = np.random.default_rng(0).normal(size=(n, 4)) + apart * (y[:, None] - 0.5)
    return X.astype(np.float32), y


def with_outlier(X, y, label, fraction=0.3):
    """Replace the first validation sample of a class by an outlier; return its row."""
    clf = DeepEnsembleClassifier(
        max_epochs=1, validation_fraction=fraction, random_state=0, device="cpu"
    ).fit(X, y)
    held = np.setdiff1d(np.arange(len(y)), clf.train_indices_)
    row = held[y[held] == label][0]
    X = X.copy()
    X[row] = 3e38
    return X, row


PAIRS = list(product(["mean_logit", "best_member", "majority"], [0, 1]))


@pytest.mark.parametrize(("rule", "label"), rest_slow(PAIRS, [PAIRS[0], PAIRS[3]]))
def test_outlier_counts_as_wrong(rule, label):
    X, y = table()
    X, row = with_outlier(X, y, label)
    clf = DeepEnsembleClassifier(aggregation=rule, **OPTIONS).fit(X, y)
    with pytest.warns(SharpBalanceWarning, match="no finite logits"):
        assert np.isnan(clf.predict_proba(X[[row]])).all()
    assert clf.validation_scores_.max() == pytest.approx(17 / 18)


@pytest.mark.slow
def test_outlier_counts_as_wrong_in_the_choice_of_a_soup():
    """The average itself has logits for it."""
    X, y = table()
    X, row = with_outlier(X, y, 0)
    clf = DeepEnsembleClassifier(aggregation="greedy_soup", **OPTIONS).fit(X, y)
    assert np.isnan(clf.member_predict_proba(X[[row]])).all()
    assert clf.validation_scores_.max() == pytest.approx(17 / 18)


@pytest.mark.parametrize(
    "kind", [DeepEnsembleClassifier, DiversifiedEnsembleClassifier]
)
def test_temperature_is_fitted_to_other_samples(kind):
    X, y = table(n=200, apart=1)
    far, row = with_outlier(X, y, 1)
    without = np.where(np.arange(len(y)) == row, 0.0, 1.0)
    clf = kind(
        aggregation="temperature",
        max_epochs=5,
        validation_fraction=0.3,
        standardize=False,
        random_state=0,
        device="cpu",
    )
    got = clf.fit(far, y).aggregation_.temperature_
    want = clf.fit(X, y, sample_weight=without).aggregation_.temperature_
    assert want != 1.0
    assert got == pytest.approx(want, rel=1e-4)


def test_is_right_equals_values_by_hand():
    nan, inf = np.nan, np.inf
    scores = np.array([[1.0, 0.0], [nan, nan], [-inf, 0.0], [inf, 0.0]])
    right = is_right(scores, np.array([0, 0, 1, 0]))
    assert right.tolist() == [True, False, True, False]
