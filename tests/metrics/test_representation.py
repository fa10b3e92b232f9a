"""Linear CKA: formula, invariances, and a naive unbiased estimator."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import linear_cka
from tests.metrics.helpers import warns_once


def features(N, P, seed):
    return np.random.default_rng(seed).normal(size=(N, P)) + 3


def naive_hsic(a, b, N):
    """Return the trace of the product of the centred Gram matrices."""
    H = np.eye(N) - 1 / N
    return np.trace(a @ a.T @ H @ b @ b.T @ H)


@pytest.mark.parametrize(("P", "Q"), [(3, 5), (30, 20), (60, 50)])
def test_equals_the_gram_matrix_formula(P, Q):
    a, b = features(20, P, 0), features(20, Q, 1)
    expected = naive_hsic(a, b, 20) / np.sqrt(
        naive_hsic(a, a, 20) * naive_hsic(b, b, 20)
    )
    assert linear_cka(a, b) == pytest.approx(expected, rel=1e-10)
    assert linear_cka(b, a) == pytest.approx(expected, rel=1e-10)
    assert 0 < expected < 1


@pytest.mark.parametrize("debiased", [False, True])
def test_rotation_scale_and_shift_do_not_matter(debiased):
    a, b = features(15, 4, 0), features(15, 6, 1)
    turned = -2.5 * b @ ortho_group.rvs(6, random_state=0) + 7
    assert linear_cka(a, turned, debiased=debiased) == pytest.approx(
        linear_cka(a, b, debiased=debiased), rel=1e-9
    )
    assert linear_cka(b, turned, debiased=debiased) == pytest.approx(1, rel=1e-9)


def unbiased_hsic_over_quadruples(k, m):
    """Return the U-statistic, a mean over quadruples of different samples."""
    values = [
        k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])
        for i, j, q, r in itertools.permutations(range(len(k)), 4)
    ]
    return np.mean(values)


def test_debiased_equals_the_u_statistic():
    a, b = features(7, 3, 0), features(7, 4, 1)
    k, m = a @ a.T, b @ b.T
    expected = unbiased_hsic_over_quadruples(k, m) / np.sqrt(
        unbiased_hsic_over_quadruples(k, k) * unbiased_hsic_over_quadruples(m, m)
    )
    assert linear_cka(a, b, debiased=True) == pytest.approx(expected, rel=1e-9)


def test_debiasing_removes_the_bias_of_few_samples():
    pairs = [(features(10, 200, s), features(10, 200, s + 100)) for s in range(20)]
    assert np.mean([linear_cka(a, b) for a, b in pairs]) > 0.8
    assert abs(np.mean([linear_cka(a, b, debiased=True) for a, b in pairs])) < 0.05


def test_more_axes_are_flattened():
    a, b = features(12, 24, 0), features(12, 5, 1)
    assert linear_cka(a.reshape(12, 2, 3, 4), b) == linear_cka(a, b)


@pytest.mark.parametrize("debiased", [False, True])
def test_constant_features_give_zero_and_a_warning(debiased):
    with warns_once() as caught:
        assert linear_cka(np.ones((6, 2)), features(6, 3, 0), debiased=debiased) == 0.0
    assert "are constant over" in str(caught[0].message)


@pytest.mark.parametrize(("n", "debiased", "needed"), [(1, False, 2), (3, True, 4)])
def test_too_few_samples_raise(n, debiased, needed):
    with pytest.raises(InvalidInputError, match=f"at least {needed} samples"):
        linear_cka(features(n, 2, 0), features(n, 2, 1), debiased=debiased)


def test_invalid_features_raise():
    with pytest.raises(InvalidInputError, match=r"features_a must have shape"):
        linear_cka(np.ones(3), np.ones((3, 1)))
    with pytest.raises(InvalidInputError, match="features_b contains infinite"):
        linear_cka(np.eye(3), np.full((3, 1), np.nan))
    with pytest.raises(InvalidInputError, match="the same in both, got 3 and 4"):
        linear_cka(np.eye(3), np.eye(4))


def test_constant_features_with_rounding_errors_give_zero():
    with warns_once() as caught:
        assert linear_cka(np.full((7, 3), 0.1), np.full((7, 2), 0.7)) == 0.0
    assert "are constant over" in str(caught[0].message)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("scale", [1e-100, 1e-60, 1e60, 1e150])
def test_features_of_any_size(scale, debiased):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    expected = linear_cka(a, b, debiased=debiased)
    actual = linear_cka(scale * a, scale * b, debiased=debiased)
    assert actual == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_debiased_similarity_of_samples_of_equal_distances_is_undefined(n):
    """Both estimates are only rounding errors, so their ratio has no meaning."""
    with warns_once() as caught:
        assert linear_cka(np.eye(n), np.eye(n), debiased=True) == 0.0
    assert "have the same distance" in str(caught[0].message)


def test_features_that_are_not_numbers_raise():
    graph = torch.ones(4, 2, requires_grad=True)  # the output of a network
    for features in (graph, [["a"], ["b"]]):
        with pytest.raises(InvalidInputError, match="features_b must be an array of"):
            linear_cka(np.eye(len(features)), features)
