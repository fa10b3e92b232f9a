"""Out-of-distribution scores, their common direction, and the AUROC."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import OOD_SCORES
from tests.metrics.helpers import random_members


def test_scores_equal_naive_loops():
    _, probas = random_members(3, 20, 4)
    mixture = probas.mean(axis=0)
    for n in range(20):
        p = probas[:, n]
        assert metrics.bma_score(probas)[n] == pytest.approx(max(mixture[n]))
        assert metrics.predictive_diversity_score(probas)[n] == pytest.approx(
            sum(max(p[m, c] for m in range(3)) for c in range(4)) / 4
        )
        assert metrics.msp_score(probas)[n] == pytest.approx(
            np.mean([max(row) for row in p])
        )
        assert metrics.msp_score(probas[0])[n] == max(p[0])
    information = np.mean([entropy(p, mixture, axis=1) for p in probas], axis=0)
    np.testing.assert_allclose(
        metrics.mutual_information(probas), information, rtol=1e-9
    )
    for given_, p in ((probas, mixture), (probas[0], probas[0])):
        found = metrics.predictive_entropy(given_)
        np.testing.assert_allclose(found, entropy(p, axis=1))


@settings(max_examples=20, deadline=None)
@given(M=st.integers(1, 5), C=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_pds_counts_classes_of_one_hot_members(M, C, seed):
    labels = np.random.default_rng(seed).integers(C, size=(M, 15))
    probas = np.eye(C)[labels]
    pds = metrics.predictive_diversity_score(probas)
    np.testing.assert_allclose(
        pds * C, metrics.unique_predictions(probas, per_sample=True)
    )
    assert (pds >= 1 / C - 1e-12).all()
    assert (pds <= min(M, C) / C + 1e-12).all()


@settings(max_examples=20, deadline=None)
@given(
    M=st.integers(1, 5),
    C=st.integers(2, 5),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.1, 3.0, 200.0]),
)
def test_ranges_and_order_of_members(M, C, seed, scale):
    _, probas = random_members(M, 10, C, seed=seed, scale=scale)
    information = metrics.mutual_information(probas)
    assert (information >= 0).all()
    assert (information <= np.log(min(M, C)) + 1e-12).all()
    assert (metrics.predictive_entropy(probas) <= np.log(C) + 1e-12).all()
    order = np.random.default_rng(seed).permutation(M)
    for score in OOD_SCORES.values():
        found = score(probas)
        assert found.shape == (10,)
        np.testing.assert_allclose(score(probas[order]), found, atol=1e-12)


def test_certain_and_single_predictions():
    assert metrics.predictive_entropy([[1.0, 0.0]]).tolist() == [0.0]
    assert np.signbit(metrics.predictive_entropy([[1.0, 0.0]])).tolist() == [False]
    _, probas = random_members(1)
    assert metrics.mutual_information(probas).tolist() == [0.0] * 40


@pytest.mark.parametrize("name", OOD_SCORES)
def test_every_score_is_larger_out_of_distribution(name):
    """The members are certain and agree in distribution only."""
    rng = np.random.default_rng(0)
    inside = np.zeros((5, 200, 10))
    inside[..., 3] = 12
    inside = inside + rng.normal(size=inside.shape)
    outside = 2 * rng.normal(size=inside.shape)
    scores = [OOD_SCORES[name](softmax(z, axis=-1)) for z in (inside, outside)]
    assert metrics.ood_auroc(*scores) > 0.95


def test_auroc_equals_the_fraction_of_ordered_pairs():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=30).round(1), rng.normal(0.5, size=20).round(1)
    wins = np.mean([(o > i) + 0.5 * (o == i) for i in inside for o in outside])
    assert metrics.ood_auroc(inside, outside) == pytest.approx(wins)
    assert metrics.ood_auroc(outside, inside) == pytest.approx(1 - wins)


def test_invalid_scores_raise():
    with pytest.raises(InvalidInputError, match="scores_in"):
        metrics.ood_auroc([], [1.0])
    with pytest.raises(InvalidInputError, match="scores_out"):
        metrics.ood_auroc([1.0], [np.nan])
