"""Parts of uncertainty against formulas, and sets of classes against MAPIE."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    load,
    metrics,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import SMALL, table


def test_entropies_and_variances_add_up():
    rng = np.random.default_rng(0)
    probas = rng.dirichlet(np.ones(4), size=(3, 20))  # (M, N, C)
    mean = probas.mean(0)
    entropy = metrics.uncertainty_parts(probas)
    np.testing.assert_allclose(entropy.total, -(mean * np.log(mean)).sum(1))
    own = -(probas * np.log(probas)).sum(2).mean(0)
    np.testing.assert_allclose(entropy.aleatoric, own)
    np.testing.assert_allclose(entropy.epistemic, entropy.total - own)
    variance = metrics.uncertainty_parts(probas, kind="variance")
    np.testing.assert_allclose(variance.total, 1 - (mean**2).sum(1))
    np.testing.assert_allclose(variance.aleatoric, 1 - (probas**2).sum(2).mean(0))
    np.testing.assert_allclose(variance.epistemic, probas.var(axis=0).sum(1))
    assert variance.disagreement.mean() == pytest.approx(metrics.disagreement(probas))


def test_one_member_has_no_epistemic_part():
    parts = metrics.uncertainty_parts([[[0.7, 0.3], [0.5, 0.5]]])
    np.testing.assert_array_equal([parts.epistemic, parts.disagreement], 0)


def test_uncertainty_of_a_frame_keeps_its_index():
    X, y = table()
    clf = SharpBalanceEnsembleClassifier(**SMALL).fit(X, y)
    frame = pd.DataFrame(X[:5], index=list("abcde"))
    result = clf.predict_uncertainty(frame.to_numpy())
    want = metrics.uncertainty_parts(clf.member_predict_proba(X[:5]))._asdict()
    pd.testing.assert_frame_equal(result, pd.DataFrame(want))
    clf.fit(pd.DataFrame(X), y)
    assert list(clf.predict_uncertainty(frame).index) == list("abcde")


@pytest.mark.parametrize("aggregation", ["mean_proba", "temperature"])
def test_sets_equal_those_of_mapie(aggregation):
    from mapie.classification import SplitConformalClassifier

    X, y = table(300)
    clf = DeepEnsembleClassifier(
        n_estimators=2,
        max_epochs=10,
        aggregation=aggregation,
        validation_fraction=0.4,
        random_state=0,
    ).fit(X, y)
    held_out = np.setdiff1d(np.arange(len(X)), clf.train_indices_)
    oracle = SplitConformalClassifier(clf, confidence_level=[0.6, 0.8], prefit=True)
    oracle.conformalize(X[held_out], y[held_out])
    _, want = oracle.predict_set(X)
    for i, confidence in enumerate((0.6, 0.8)):
        sets = clf.predict_set(X, confidence=confidence)
        np.testing.assert_array_equal(sets, want[:, :, i])


TABLES = {
    "digits": lambda: load_digits(return_X_y=True),
    "blobs": lambda: make_blobs(600, centers=5, cluster_std=3, random_state=0),
    "wrong labels": lambda: make_classification(600, flip_y=0.3, random_state=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_sets_cover_the_true_class(name):
    """The mean over splits of the coverage is at least the confidence, less chance."""
    X, y = TABLES[name]()
    codes = np.unique(y, return_inverse=True)[1]
    covered, n_splits = [], 10
    for seed in range(n_splits):
        parts = train_test_split(X, codes, test_size=0.3, random_state=seed)
        X_train, X_test, y_train, y_test = parts
        clf = DeepEnsembleClassifier(
            n_estimators=2, max_epochs=10, validation_fraction=0.4, random_state=seed
        ).fit(X_train, y_train)
        sets = clf.predict_set(X_test, confidence=0.9)
        covered.append(sets[np.arange(len(y_test)), y_test].mean())
    n_held_out = len(codes) * 0.7 * 0.4
    # Coverage given the validation samples is Beta-distributed around the confidence.
    chance = np.sqrt(0.9 * 0.1 * (1 / n_held_out + 1 / len(y_test)) / n_splits)
    assert 0.9 - 3 * chance < np.mean(covered) < 0.9 + 1 / n_held_out + 3 * chance


def test_sets_of_a_saved_model_and_of_heads(tmp_path):
    X, y = table()
    clf = DiversifiedEnsembleClassifier(validation_fraction=0.3, **SMALL).fit(X, y)
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model").predict_set(X)
    np.testing.assert_array_equal(again, clf.predict_set(X))


def test_few_validation_samples_allow_every_class():
    X, y = table()
    clf = DeepEnsembleClassifier(validation_fraction=0.1, **SMALL).fit(X, y)
    assert clf.predict_set(X, confidence=0.99).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda clf, X: clf.predict_set(X), "validation_fraction=0.2"),
        (lambda clf, X: clf.predict_set(X, confidence=90), "confidence must be"),
        (lambda clf, X: clf.predict_uncertainty(X, kind="std"), "'variance', got"),
    ],
)
def test_bad_input(call, message):
    X, y = table()
    clf = DeepEnsembleClassifier(**SMALL).fit(X, y)
    with pytest.raises(InvalidInputError, match=message):
        call(clf, X)
