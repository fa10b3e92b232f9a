"""Compare entropy, mutual information and AURC with loops and scipy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    area_under_risk_coverage,
    mutual_information,
    predictive_entropy,
)
from tests.metrics.helpers import random_members


def test_entropy_equals_scipy():
    _, probas = random_members(3, 20, 5)
    np.testing.assert_allclose(
        predictive_entropy(probas[0]), entropy(probas[0], axis=1)
    )
    np.testing.assert_allclose(
        predictive_entropy(probas), entropy(probas.mean(axis=0), axis=1)
    )


def test_mutual_information_is_the_mean_kl_to_the_mixture():
    _, probas = random_members(4, 20, 5)
    mixture = probas.mean(axis=0)
    expected = np.mean([entropy(p, mixture, axis=1) for p in probas], axis=0)
    np.testing.assert_allclose(mutual_information(probas), expected, rtol=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    M=st.integers(1, 5),
    C=st.integers(2, 5),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.1, 3.0, 200.0]),
)
def test_ranges(M, C, seed, scale):
    _, probas = random_members(M, 10, C, seed=seed, scale=scale)
    information = mutual_information(probas)
    assert (information >= 0).all()
    assert (information <= np.log(min(M, C)) + 1e-12).all()
    assert (predictive_entropy(probas) <= np.log(C) + 1e-12).all()
    order = np.random.default_rng(seed).permutation(M)
    np.testing.assert_allclose(
        mutual_information(probas[order]), information, atol=1e-12
    )


def test_certain_and_single_predictions():
    assert predictive_entropy([[1.0, 0.0]]).tolist() == [0.0]
    assert np.signbit(predictive_entropy([[1.0, 0.0]])).tolist() == [False]
    _, probas = random_members(1)
    assert mutual_information(probas).tolist() == [0.0] * 40


def naive_aurc(confidence, wrong):
    order = np.argsort(-confidence, kind="stable")
    return np.mean([wrong[order[:k]].mean() for k in range(1, len(order) + 1)])


def test_aurc_equals_the_naive_loop():
    y, probas = random_members(1, 80, 4)
    wrong = probas[0].argmax(1) != y
    expected = naive_aurc(probas[0].max(1), wrong)
    assert area_under_risk_coverage(y, probas[0]) == pytest.approx(expected)
    other = np.random.default_rng(1).normal(size=80)
    value = area_under_risk_coverage(y, probas[0], confidence=other)
    assert value == pytest.approx(naive_aurc(other, wrong))


def test_ties_are_averaged_over_their_orders():
    proba = np.array([[0.8, 0.2], [0.6, 0.4], [0.6, 0.4], [0.6, 0.4], [0.55, 0.45]])
    y = np.array([0, 1, 0, 1, 0])
    wrong = y == 1
    expected = np.mean(
        [
            np.mean([wrong[list((0, *p, 4))[:k]].mean() for k in range(1, 6)])
            for p in itertools.permutations([1, 2, 3])
        ]
    )
    assert area_under_risk_coverage(y, proba) == pytest.approx(expected, rel=1e-12)


def test_excess_is_zero_for_the_best_ranking():
    y, probas = random_members(1, 50, 3)
    right = (probas[0].argmax(1) == y).astype(float)
    best = area_under_risk_coverage(y, probas[0], confidence=right)
    value = area_under_risk_coverage(y, probas[0])
    assert area_under_risk_coverage(
        y, probas[0], confidence=right, excess=True
    ) == pytest.approx(0, abs=1e-15)
    assert area_under_risk_coverage(y, probas[0], excess=True) == pytest.approx(
        value - best
    )
    assert 0 < best < value < 1


def test_all_right_and_all_wrong():
    y = np.arange(9) % 3
    assert area_under_risk_coverage(y, np.eye(3)[y]) == 0
    assert area_under_risk_coverage(y, np.eye(3)[(y + 1) % 3]) == 1


def test_confidence_of_another_length_raises():
    y, probas = random_members(1)
    with pytest.raises(InvalidInputError, match="40 samples but confidence has 3"):
        area_under_risk_coverage(y, probas[0], confidence=[1, 2, 3])
