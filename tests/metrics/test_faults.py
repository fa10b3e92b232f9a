"""Compare double fault and Q statistic with manual counts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_sharpbalance import metrics
from tests.metrics.helpers import random_members, warns_once


def from_correctness(right):
    """Return binary members (M, N, 2) that predict class 0 where ``right``."""
    right = np.asarray(right, dtype=float)
    return np.stack([0.2 + 0.6 * right, 0.8 - 0.6 * right], axis=-1)


def naive_q(right):
    values = []
    for a, b in itertools.combinations(np.asarray(right, dtype=bool), 2):
        n11, n00 = np.sum(a & b), np.sum(~a & ~b)
        n10, n01 = np.sum(a & ~b), np.sum(~a & b)
        values.append((n11 * n00 - n10 * n01) / (n11 * n00 + n10 * n01))
    return np.mean(values)


def test_counts_by_hand():
    right = [[1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 0, 0]]
    y, probas = np.zeros(6, int), from_correctness(right)
    # Each pair: both right 2, both wrong 2, one right 1 + 1.
    assert metrics.double_fault(y, probas) == pytest.approx(2 / 6)
    assert metrics.q_statistic(y, probas) == pytest.approx((4 - 1) / (4 + 1))
    assert naive_q(right) == pytest.approx(3 / 5)


def test_opposite_members_have_q_of_minus_one():
    right = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    assert metrics.q_statistic(np.zeros(4, int), from_correctness(right)) == -1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), M=st.integers(2, 5))
def test_q_equals_the_naive_one_in_any_order(seed, M):
    rng = np.random.default_rng(seed)
    right = rng.random((M, 60)) < 0.6
    y, probas = np.zeros(60, int), from_correctness(right)
    value = metrics.q_statistic(y, probas)
    assert -1 <= value <= 1
    assert value == pytest.approx(naive_q(right), rel=1e-12, abs=1e-15)
    shuffled = probas[rng.permutation(M)]
    assert metrics.q_statistic(y, shuffled) == pytest.approx(value, abs=1e-12)


def test_undefined_pairs_are_left_out_with_a_warning():
    right = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]]  # the first is always right
    with warns_once() as caught:
        value = metrics.q_statistic(np.zeros(4, int), from_correctness(right))
    assert value == 0.0  # (1 * 1 - 1 * 1) / 2 of the last two
    assert "undefined for 2 of 3 pairs" in str(caught[0].message)


def test_double_fault_is_bounded_by_the_error():
    y, probas = random_members(4, 80, 5)
    errors = (probas.argmax(-1) != y).mean(axis=1)
    assert 0 < metrics.double_fault(y, probas) <= errors.mean()
