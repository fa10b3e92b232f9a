"""Compare the ECE with a naive loop and scikit-learn."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    calibration_curve_bins,
    expected_calibration_error,
)
from tests.metrics.helpers import random_members, warns_once


def one_predictor(N=300, C=4, **kwargs):
    y, probas = random_members(1, N, C, **kwargs)
    return y, probas[0]


def naive_gaps(confidence, right, edges):
    """Return the fraction of samples and the gap of each bin (a, b]."""
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = right[inside].mean() - confidence[inside].mean()
            yield inside.mean(), gap


def naive_ece(confidence, right, n_bins):
    edges = np.linspace(0, 1, n_bins + 1)
    return sum(w * abs(gap) for w, gap in naive_gaps(confidence, right, edges))


@pytest.mark.parametrize("n_bins", [1, 10, 15])
@pytest.mark.parametrize("C", [2, 7])
def test_ece_equals_the_naive_loop(n_bins, C):
    y, proba = one_predictor(C=C)
    expected = naive_ece(proba.max(1), proba.argmax(1) == y, n_bins)
    value = expected_calibration_error(y, proba, n_bins=n_bins)
    assert value == pytest.approx(expected, rel=1e-12)


def test_classwise_is_the_mean_over_classes():
    y, proba = one_predictor(C=5)
    y = y % 4  # the last class never occurs
    expected = np.mean([naive_ece(proba[:, c], y == c, 15) for c in range(5)])
    value = expected_calibration_error(y, proba, classwise=True)
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_equal_those_of_scikit_learn(strategy):
    """Compare with scikit-learn's calibration curve for two classes."""
    rng = np.random.default_rng(0)
    # Above one half the second class is predicted, so both use its probability.
    positive = rng.uniform(0.5001, 1, size=400)
    y = (rng.random(400) < positive).astype(int)
    bins = calibration_curve_bins(
        y, np.stack([1 - positive, positive], 1), n_bins=8, strategy=strategy
    )
    reached, claimed = calibration_curve(y, positive, n_bins=8, strategy=strategy)
    full = bins.counts > 0
    np.testing.assert_allclose(bins.accuracy[full], reached)
    np.testing.assert_allclose(bins.confidence[full], claimed)
    assert bins.counts.sum() == 400
    assert (bins.accuracy[~full] == 0).all()
    assert bins.edges.shape == (9,)


def test_quantile_bins_have_equal_counts():
    y, proba = one_predictor(300)
    bins = calibration_curve_bins(y, proba, strategy="quantile")
    assert (bins.counts == 20).all()
    groups = np.array_split(np.argsort(proba.max(1)), 15)
    right = proba.argmax(1) == y
    expected = sum(
        len(g) / 300 * abs(right[g].mean() - proba.max(1)[g].mean()) for g in groups
    )
    value = expected_calibration_error(y, proba, strategy="quantile")
    assert value == pytest.approx(expected, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    strategy=st.sampled_from(["uniform", "quantile"]),
    classwise=st.booleans(),
)
def test_value_is_in_range_and_independent_of_the_order(seed, strategy, classwise):
    y, proba = one_predictor(60, 3, seed=seed)
    proba = proba.round(1)  # many ties
    proba[:, 0] = 1 - proba[:, 1:].sum(1)
    proba = np.clip(proba, 0, 1)
    options = {"strategy": strategy, "classwise": classwise}
    value = expected_calibration_error(y, proba, **options)
    assert 0 <= value <= 1
    order = np.random.default_rng(seed).permutation(60)
    shuffled = expected_calibration_error(y[order], proba[order], **options)
    assert shuffled == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("classwise", [False, True])
def test_a_sample_of_weight_two_counts_twice(classwise):
    y, proba = one_predictor()
    weight = np.arange(300) % 3
    rows = np.repeat(np.arange(300), weight)
    options = {"classwise": classwise}
    assert expected_calibration_error(
        y, proba, sample_weight=1e300 * weight, **options
    ) == pytest.approx(expected_calibration_error(y[rows], proba[rows], **options))
    assert expected_calibration_error(
        y, proba, sample_weight=np.ones(300), **options
    ) == pytest.approx(expected_calibration_error(y, proba, **options))


def test_fewer_samples_than_bins_warn():
    y, proba = one_predictor(5)
    with warns_once() as caught:
        value = expected_calibration_error(y, proba)
    assert "5 samples for 15 bins" in str(caught[0].message)
    assert value == pytest.approx(naive_ece(proba.max(1), proba.argmax(1) == y, 15))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "equal"}, "Unknown strategy 'equal'"),
        ({"n_bins": 0}, "n_bins must be an int in .* got 0"),
        ({"n_bins": 2.5}, "n_bins must be an int in .* got 2.5"),
        ({"n_bins": 10.0}, "n_bins must be an int in .* got 10.0"),
        ({"n_bins": "auto"}, "n_bins must be an int in .* got 'auto'"),
        ({"sample_weight": np.ones(3)}, "3 entries for 300 samples"),
        ({"sample_weight": np.arange(300) - 1}, "must not be negative.*from -1 to 298"),
        ({"sample_weight": np.zeros(300)}, "at least one weight must be"),
        ({"sample_weight": np.full(300, np.nan)}, "sample_weight contains infinite"),
    ],
)
def test_invalid_options_raise(options, message):
    y, proba = one_predictor()
    with pytest.raises(InvalidInputError, match=message):
        expected_calibration_error(y, proba, **options)
