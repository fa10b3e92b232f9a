"""Out-of-distribution scores, their common direction, and the AUROC."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.metrics import roc_auc_score, roc_curve

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import LOGIT_SCORES, OOD_SCORES
from tests.metrics.helpers import random_members


def test_scores_equal_naive_loops():
    _, probas = random_members(3, 20, 4)
    for n in range(20):
        p = probas[:, n]
        assert metrics.bma_score(probas)[n] == pytest.approx(max(p.mean(axis=0)))
        assert metrics.predictive_diversity_score(probas)[n] == pytest.approx(
            sum(max(p[m, c] for m in range(3)) for c in range(4)) / 4
        )
        assert metrics.msp_score(probas)[n] == pytest.approx(
            np.mean([max(row) for row in p])
        )
        assert metrics.msp_score(probas[0])[n] == max(p[0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_energy_equals_torch(temperature):
    logits = np.random.default_rng(0).normal(size=(3, 20, 4)) * 30
    expected = -temperature * torch.logsumexp(
        torch.from_numpy(logits[0]) / temperature, dim=1
    )
    value = metrics.energy_score(logits[0], temperature=temperature)
    np.testing.assert_allclose(value, expected.numpy())
    np.testing.assert_allclose(
        metrics.energy_score(logits), metrics.energy_score(logits.mean(axis=0))
    )


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
@given(name=st.sampled_from(sorted(OOD_SCORES)), seed=st.integers(0, 10**6))
def test_scores_do_not_depend_on_the_order_of_members(name, seed):
    _, probas = random_members(4, 10, 3, seed=seed)
    outputs = np.log(probas) if name in LOGIT_SCORES else probas
    order = np.random.default_rng(seed).permutation(4)
    score = OOD_SCORES[name](outputs)
    assert score.shape == (10,)
    np.testing.assert_allclose(OOD_SCORES[name](outputs[order]), score, atol=1e-12)


@pytest.mark.parametrize("name", OOD_SCORES)
def test_every_score_is_larger_for_foreign_samples(name):
    """The members are certain and agree on known samples only."""
    rng = np.random.default_rng(0)
    known = np.zeros((5, 200, 10))
    known[..., 3] = 12
    known = known + rng.normal(size=known.shape)
    foreign = 2 * rng.normal(size=known.shape)
    convert = (lambda z: z) if name in LOGIT_SCORES else (lambda z: softmax(z, axis=-1))
    score = OOD_SCORES[name]
    assert metrics.ood_auroc(score(convert(known)), score(convert(foreign))) > 0.95


def test_names_of_scores_that_need_logits_exist():
    assert set(OOD_SCORES) > LOGIT_SCORES


def test_auroc_equals_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    known, foreign = rng.normal(size=30).round(1), rng.normal(0.5, size=20).round(1)
    wins = np.mean([(o > i) + 0.5 * (o == i) for i in known for o in foreign])
    assert metrics.ood_auroc(known, foreign) == pytest.approx(wins)
    assert metrics.ood_auroc(foreign, known) == pytest.approx(1 - wins)
    labels = np.r_[np.zeros(30), np.ones(20)]
    assert metrics.ood_auroc(known, foreign) == roc_auc_score(
        labels, np.r_[known, foreign]
    )


@pytest.mark.parametrize("detected", [0.5, 0.95, 1.0])
def test_false_positive_rate_equals_the_roc_curve(detected):
    rng = np.random.default_rng(0)
    known, foreign = rng.normal(size=70), rng.normal(1, size=40)
    labels = np.r_[np.zeros(70), np.ones(40)]
    fpr, tpr, _ = roc_curve(labels, np.r_[known, foreign], drop_intermediate=False)
    expected = fpr[np.argmax(tpr >= detected - 1e-12)]
    value = metrics.ood_false_positive_rate(known, foreign, detected=detected)
    assert value == pytest.approx(expected)


def test_invalid_input_raises():
    with pytest.raises(InvalidInputError, match="scores_in must contain one number"):
        metrics.ood_auroc([], [1.0])
    with pytest.raises(InvalidInputError, match="scores_out contains infinite"):
        metrics.ood_auroc([1.0], [np.nan])
    with pytest.raises(
        InvalidInputError, match=r"temperature must be a float in .* got 0"
    ):
        metrics.energy_score([[1.0, 2.0]], temperature=0)
    with pytest.raises(
        InvalidInputError, match=r"detected must be a float in the range \(0.0, 1.0\]"
    ):
        metrics.ood_false_positive_rate([1.0], [2.0], detected=0)
    with pytest.raises(InvalidInputError, match=r"logits must have shape \(n_samples"):
        metrics.energy_score([1.0, 2.0])


def test_at_least_one_foreign_sample_must_be_detected():
    assert metrics.ood_false_positive_rate([1, 3], [2, 4], detected=1e-12) == 0.0
