"""Compare diversity and improvement with naive loops and identities; edge cases."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.aggregation import AGGREGATIONS
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.metrics.helpers import random_members, warns_once

sizes = {
    "M": st.integers(2, 5),
    "N": st.integers(1, 30),
    "C": st.integers(2, 6),
    "seed": st.integers(0, 10**6),
}
few = settings(max_examples=25, deadline=None)
SYMMETRIC = [
    metrics.disagreement,
    metrics.variance_diversity,
    metrics.kl_diversity,
    metrics.unique_predictions,
]


def naive_disagreement(probas):
    labels = probas.argmax(-1)
    pairs = itertools.combinations(range(len(probas)), 2)
    return np.mean(
        [np.mean([a != b for a, b in zip(labels[i], labels[j])]) for i, j in pairs]
    )


def naive_kl(probas):
    values = [
        sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist()))
        for first, second in itertools.permutations(probas, 2)
        for p, q in zip(first, second)
    ]
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("C", [2, 5])
@pytest.mark.parametrize("M", [2, 3, 5])
def test_diversity_equals_naive_loops(M, C):
    y, probas = random_members(M, 50, C)
    dis = naive_disagreement(probas)
    errors = [
        np.mean([p.argmax() != t for p, t in zip(member, y)]) for member in probas
    ]
    variance = np.mean(
        [sum(np.var(probas[:, n, c], ddof=1) for c in range(C)) for n in range(50)]
    )
    assert metrics.disagreement(probas) == pytest.approx(dis, rel=1e-12)
    assert metrics.disagreement_error_ratio(y, probas) == pytest.approx(
        dis / np.mean(errors), rel=1e-12
    )
    assert metrics.variance_diversity(probas) == pytest.approx(variance, rel=1e-12)
    assert metrics.kl_diversity(probas) == pytest.approx(naive_kl(probas), rel=1e-10)
    assert metrics.unique_predictions(probas) == np.mean(
        [len(set(column)) for column in probas.argmax(-1).T]
    )


def test_result_does_not_depend_on_chunks():
    _, probas = random_members(3, 2500, 3)
    for outputs in (probas, 9 * np.log(probas)):  # the variance accepts logits
        variance = outputs.var(axis=0, ddof=1).sum(axis=1).mean()
        value = metrics.variance_diversity(outputs)
        assert value == pytest.approx(variance, rel=1e-12)
    assert metrics.kl_diversity(probas) == pytest.approx(naive_kl(probas), rel=1e-10)


def test_zero_probabilities_are_clipped_in_the_logarithm():
    probas = [[[1.0, 0.0]], [[0.0, 1.0]]]
    assert metrics.kl_diversity(probas) == pytest.approx(-np.log(1e-12))


def test_one_member_has_no_diversity():
    y, probas = random_members(1)
    for metric in SYMMETRIC[:3]:
        with warns_once() as caught:
            assert metric(probas) == 0.0
        assert metric.__name__ in str(caught[0].message)
    with warns_once():
        assert metrics.disagreement_error_ratio(y, probas) == 0.0
    assert (metrics.unique_predictions(probas, per_sample=True) == 1).all()
    assert metrics.ensemble_improvement_rate(y, probas) == 0.0


def test_all_members_right():
    y, _ = random_members()
    probas = np.stack([np.eye(4)[y]] * 3)
    for metric in (metrics.disagreement_error_ratio, metrics.ensemble_improvement_rate):
        with warns_once() as caught:
            assert metric(y, probas) == 0.0
        assert "zero" in str(caught[0].message)
    with warns_once():
        worse = metrics.ensemble_improvement_rate(
            y, probas, ensemble_proba=np.eye(4)[(y + 1) % 4]
        )
    assert worse == -np.inf


def test_a_class_missing_from_y_changes_nothing():
    y, probas = random_members(C=4)
    y = y % 3
    wider = np.concatenate([probas[..., :3], np.zeros((3, 40, 1))], axis=2)
    wider /= wider.sum(-1, keepdims=True)
    narrow = wider[..., :3]
    assert metrics.disagreement_error_ratio(y, wider) == pytest.approx(
        metrics.disagreement_error_ratio(y, narrow)
    )
    assert metrics.kl_diversity(wider) == pytest.approx(metrics.kl_diversity(narrow))


@few
@given(**sizes)
def test_ranges_and_order_of_members(M, N, C, seed):
    _, probas = random_members(M, N, C, seed=seed)
    shuffled = probas[np.random.default_rng(seed).permutation(M)]
    assert 0 <= metrics.disagreement(probas) <= 1
    assert 0 <= metrics.variance_diversity(probas) <= 1 + 1e-12
    assert 0 <= metrics.kl_diversity(probas) <= -np.log(1e-12)
    assert 1 <= metrics.unique_predictions(probas) <= min(M, C)
    for metric in SYMMETRIC:
        assert metric(shuffled) == pytest.approx(metric(probas), rel=1e-9, abs=1e-14)
    same = np.repeat(probas[:1], M, axis=0)
    for metric in SYMMETRIC[:3]:
        assert metric(same) == pytest.approx(0, abs=1e-14)


def test_improvement_equals_the_naive_one_of_the_default_aggregation():
    y, probas = random_members(3, 200, 3, scale=5.0)
    errors = np.mean([np.mean(p.argmax(1) != y) for p in probas])
    aggregate = AGGREGATIONS.resolve(DeepEnsembleClassifier().aggregation)
    default, values = metrics.ensemble_improvement_rate(y, probas), []
    for combined in (aggregate(np.log(probas)), probas.mean(axis=0)):
        expected = (errors - np.mean(combined.argmax(1) != y)) / errors
        value = metrics.ensemble_improvement_rate(y, probas, ensemble_proba=combined)
        assert value == pytest.approx(expected)
        values.append(value)
    assert values[0] == default != values[1]
    with_zeros = [[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.4], [0.3, 0.7]]]
    assert metrics.ensemble_improvement_rate([0, 0], with_zeros) == 0.0


def test_improvement_raises_for_an_ensemble_of_another_shape():
    y, probas = random_members()
    with pytest.raises(InvalidInputError, match=r"\(40, 4\).*\(39, 4\)"):
        metrics.ensemble_improvement_rate(y, probas, ensemble_proba=probas[0, 1:])
