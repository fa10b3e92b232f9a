"""NLL and Brier score against scikit-learn; deep ensemble equivalent."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    brier_score,
    deep_ensemble_equivalent,
    negative_log_likelihood,
)
from tests.metrics.helpers import random_members, warns_once


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("C", [2, 5])
def test_nll_and_brier_equal_scikit_learn(C, dtype):
    y, probas = random_members(1, 200, C, dtype=dtype)
    proba = np.clip(probas[0], 0, 1)
    labels = np.arange(C)
    assert negative_log_likelihood(y, proba) == pytest.approx(
        log_loss(y, proba, labels=labels), rel=1e-5
    )
    assert brier_score(y, proba) == pytest.approx(
        brier_score_loss(y, proba if C > 2 else proba[:, 1], labels=labels), rel=1e-5
    )
    for half in (False, True):
        assert brier_score(y, proba, scale_by_half=half) == pytest.approx(
            brier_score_loss(y, proba, labels=labels, scale_by_half=half), rel=1e-5
        )


def test_sample_weights_equal_scikit_learn():
    y, probas = random_members(1, 200, 5)
    weight = np.random.default_rng(0).random(200)
    options = {"labels": np.arange(5), "sample_weight": weight}
    assert negative_log_likelihood(y, probas[0], sample_weight=weight) == (
        pytest.approx(log_loss(y, probas[0], **options))
    )
    assert brier_score(y, probas[0], sample_weight=1e308 * weight) == pytest.approx(
        brier_score_loss(y, probas[0], **options)
    )
    for score in (negative_log_likelihood, brier_score):
        with pytest.raises(InvalidInputError, match="3 entries for 200 samples"):
            score(y, probas[0], sample_weight=weight[:3])


def test_a_missing_class_is_accepted():
    y, probas = random_members(1, 50, 4)
    y = y % 3
    assert negative_log_likelihood(y, probas[0]) == pytest.approx(
        log_loss(y, probas[0], labels=range(4))
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_zero_probability_equals_scikit_learn(dtype):
    proba = np.array([[1, 0], [0, 1]], dtype=dtype)
    assert negative_log_likelihood([1, 1], proba) == pytest.approx(
        -np.log(np.finfo(dtype).eps) / 2
    )
    assert negative_log_likelihood([0, 1], proba) == 0
    assert brier_score([0, 1], proba) == 0


@pytest.mark.parametrize(
    ("nll", "expected"),
    [(1.0, 1), (0.75, 1.5), (0.5, 2), (0.4, 2 + 0.1 / 0.25), (0.25, 3)],
)
def test_equivalent_members_interpolate(nll, expected):
    assert deep_ensemble_equivalent(nll, [1.0, 0.5, 0.25]) == pytest.approx(expected)


def test_equivalent_of_every_reference_is_its_size():
    reference = 1 / np.sqrt(np.arange(1, 9))
    for size, nll in enumerate(reference, start=1):
        assert deep_ensemble_equivalent(nll, reference) == pytest.approx(size)


def test_a_reference_that_rises_by_chance_is_flattened():
    assert deep_ensemble_equivalent(0.45, [1.0, 0.5, 0.6, 0.4]) == pytest.approx(3.5)
    assert deep_ensemble_equivalent(0.5, [1.0, 0.5, 0.6, 0.4]) == 2


def test_equivalents_beyond_the_reference_warn():
    with warns_once() as caught:
        assert deep_ensemble_equivalent(1.1, [1.0, 0.5]) == 1.0
    assert "above that of one plain member" in str(caught[0].message)
    with warns_once() as caught:
        assert deep_ensemble_equivalent(0.4, [1.0, 0.5]) == 2.0
    assert "a lower bound" in str(caught[0].message)


def test_equivalent_raises_for_values_that_are_not_finite():
    with pytest.raises(InvalidInputError, match="nll must be a finite number"):
        deep_ensemble_equivalent(np.nan, [1.0])
    with pytest.raises(InvalidInputError, match="reference_nlls contains infinite"):
        deep_ensemble_equivalent(1.0, [1.0, np.nan])


def test_unknown_scale_of_the_brier_score_raises():
    with pytest.raises(InvalidInputError, match="True, False or 'auto', got 'no'"):
        brier_score([0], [[0.5, 0.5]], scale_by_half="no")
