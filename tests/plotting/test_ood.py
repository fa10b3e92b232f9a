"""ROC curves and histograms of out-of-distribution scores."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import RocCurveDisplay

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import predictive_diversity_score
from sklearn_sharpbalance.plotting import OODDisplay

rng = np.random.default_rng(0)
IN, OUT = rng.normal(size=50), rng.normal(1, 1, size=30)


def test_curve_is_that_of_scikit_learn():
    display = OODDisplay(IN, OUT).plot()
    is_out = np.r_[np.zeros(50), np.ones(30)]
    other = RocCurveDisplay.from_predictions(is_out, np.r_[IN, OUT])
    np.testing.assert_allclose(display.line_.get_xydata(), other.line_.get_xydata())
    assert display.auroc == pytest.approx(other.roc_auc)
    pairs = (OUT[:, None] > IN).mean()
    assert display.auroc == pytest.approx(pairs)


def test_histograms_are_fractions_in_the_same_bins():
    display = OODDisplay(IN, OUT, score_name="PDS").plot(kind="histogram")
    assert display.line_ is None
    assert display.ax_.get_xlabel() == "PDS"
    edges = np.linspace(min(IN.min(), OUT.min()), max(IN.max(), OUT.max()), 31)
    for bars, scores in ((display.bars_in_, IN), (display.bars_out_, OUT)):
        values, found, _ = bars.get_data()
        np.testing.assert_allclose(found, edges)
        counts = [
            np.sum((scores >= low) & (scores < high))
            for low, high in zip(edges, [*edges[1:-1], np.inf])
        ]
        np.testing.assert_allclose(values, np.array(counts) / len(scores))


def test_scores_of_an_ensemble(ensemble, digits):
    other = digits.X[:40] * 5
    display = OODDisplay.from_estimator(ensemble, digits.X, other, score="pds")
    expected = predictive_diversity_score(ensemble.member_predict_proba(other))
    np.testing.assert_allclose(display.scores_out, expected)
    assert display.score_name == "PDS"
    assert display.name == "SharpBalanceEnsembleClassifier, PDS"
    with pytest.raises(InvalidInputError, match="Unknown score 'odin'"):
        OODDisplay.from_estimator(ensemble, digits.X, other, score="odin")


def test_any_classifier_has_the_default_score(digits):
    clf = LogisticRegression().fit(digits.X, digits.y)
    display = OODDisplay.from_estimator(clf, digits.X, digits.X * 0.1)
    np.testing.assert_allclose(display.scores_in, -clf.predict_proba(digits.X).max(1))
    with pytest.raises(InvalidInputError, match="has no score 'pds': it compares"):
        OODDisplay.from_estimator(clf, digits.X, digits.X, score="pds")


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ((IN, OUT), "bars", "kind must be 'roc' or 'histogram', got 'bars'"),
        ((IN, []), "roc", "scores_out"),
        (([np.nan], OUT), "roc", "scores_in"),
    ],
)
def test_bad_input_raises_before_a_figure_is_made(arrays, kind, message):
    with pytest.raises(InvalidInputError, match=message):
        OODDisplay(*arrays).plot(kind=kind)
    assert plt.get_fignums() == []
