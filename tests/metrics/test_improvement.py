"""EIR against manual values, and identities of the loss decompositions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import entropy
from sklearn.metrics import log_loss

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.aggregation import AGGREGATIONS
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.metrics.helpers import random_members, warns_once

LOSSES = ["nll", "nll_mean_proba", "squared_error"]


def test_eir_equals_the_naive_one():
    y, probas = random_members(4, 60, 5)
    errors = [np.mean(p.argmax(1) != y) for p in probas]
    together = np.mean(probas.mean(axis=0).argmax(1) != y)
    expected = (np.mean(errors) - together) / np.mean(errors)
    value = metrics.ensemble_improvement_rate(y, probas, aggregation="mean_proba")
    assert value == pytest.approx(expected)


def test_eir_of_an_ensemble_that_averages_logits():
    y, probas = random_members(3, 200, 3, scale=5.0)
    combined = softmax(np.log(probas).mean(axis=0), axis=-1)
    errors = (probas.argmax(-1) != y).mean()
    expected = 1 - (combined.argmax(1) != y).mean() / errors
    value = metrics.ensemble_improvement_rate(y, probas, ensemble_proba=combined)
    assert value == pytest.approx(expected)
    assert value == metrics.ensemble_improvement_rate(y, probas)
    other = metrics.ensemble_improvement_rate(y, probas, aggregation="mean_proba")
    assert value != other


def test_eir_of_an_ensemble_is_that_of_its_default_aggregation():
    y, probas = random_members(3, 120, 3, scale=5.0)
    aggregate = AGGREGATIONS.resolve(DeepEnsembleClassifier().aggregation)
    combined = aggregate(np.log(probas))
    assert metrics.ensemble_improvement_rate(
        y, probas
    ) == metrics.ensemble_improvement_rate(y, probas, ensemble_proba=combined)


def test_eir_of_probabilities_that_are_zero():
    probas = [[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.4], [0.3, 0.7]]]
    assert metrics.ensemble_improvement_rate([0, 0], probas) == 0.0
    with pytest.raises(InvalidInputError, match="Unknown aggregation 'mean'"):
        metrics.ensemble_improvement_rate([0, 0], probas, aggregation="mean")


def test_eir_of_one_member_is_zero():
    y, probas = random_members(1)
    assert metrics.ensemble_improvement_rate(y, probas) == 0.0


def test_eir_where_all_members_are_right():
    y, _ = random_members()
    probas = np.stack([np.eye(4)[y]] * 2)
    with warns_once() as caught:
        assert metrics.ensemble_improvement_rate(y, probas) == 0.0
    assert "mean error, which is zero; returning 0.0" in str(caught[0].message)
    with warns_once():
        worse = metrics.ensemble_improvement_rate(
            y, probas, ensemble_proba=np.eye(4)[(y + 1) % 4]
        )
    assert worse == -np.inf


def test_eir_raises_for_an_ensemble_of_another_shape():
    y, probas = random_members()
    with pytest.raises(InvalidInputError, match=r"shape \(40, 4\).*got \(39, 4\)"):
        metrics.ensemble_improvement_rate(y, probas, ensemble_proba=probas[0, 1:])


def test_parts_of_the_nll_of_mean_logits():
    y, probas = random_members(3, 50, 4)
    ensemble = softmax(np.log(probas).mean(axis=0), axis=-1)
    parts = metrics.loss_decomposition(y, probas)
    kl = np.mean([entropy(ensemble, p, axis=1) for p in probas])
    assert parts.ensemble_loss == pytest.approx(log_loss(y, ensemble), rel=1e-9)
    assert parts.member_loss == pytest.approx(
        np.mean([log_loss(y, p) for p in probas]), rel=1e-9
    )
    assert parts.ambiguity == pytest.approx(kl, rel=1e-9)


def test_ambiguity_of_mean_logits_needs_no_labels():
    y, probas = random_members(3, 50, 4)
    assert metrics.loss_decomposition(y, probas).ambiguity == pytest.approx(
        metrics.loss_decomposition((y + 1) % 4, probas).ambiguity
    )


def test_mean_logit_ensemble_of_logits_with_any_offset():
    """The geometric mean does not depend on a constant in the members' logits."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 30, 4)) + rng.normal(size=(3, 30, 1)) * 5
    y = rng.integers(4, size=30)
    nll = -log_softmax(logits.mean(axis=0), axis=-1)[np.arange(30), y].mean()
    parts = metrics.loss_decomposition(y, softmax(logits, axis=-1))
    assert parts.ensemble_loss == pytest.approx(nll, rel=1e-9)


def test_parts_of_the_nll_of_mean_probabilities():
    y, probas = random_members(3, 50, 4)
    parts = metrics.loss_decomposition(y, probas, loss="nll_mean_proba")
    assert parts.ensemble_loss == pytest.approx(log_loss(y, probas.mean(axis=0)))
    assert parts.member_loss == pytest.approx(np.mean([log_loss(y, p) for p in probas]))


def test_ambiguity_of_the_squared_error_is_the_variance():
    y, probas = random_members(4, 50, 3)
    parts = metrics.loss_decomposition(y, probas, loss="squared_error")
    assert parts.ambiguity == pytest.approx(metrics.variance_diversity(probas) * 3 / 4)
    assert parts.ensemble_loss == pytest.approx(
        metrics.brier_score(y, probas.mean(axis=0), scale_by_half=False)
    )


@settings(max_examples=30, deadline=None)
@given(
    loss=st.sampled_from(LOSSES),
    M=st.integers(1, 5),
    N=st.integers(1, 20),
    C=st.integers(2, 5),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.1, 2.0, 40.0]),
)
def test_the_identity_is_exact(loss, M, N, C, seed, scale):
    y, probas = random_members(M, N, C, seed=seed, scale=scale)
    parts = metrics.loss_decomposition(y, probas, loss=loss)
    assert parts.ensemble_loss == pytest.approx(
        parts.member_loss - parts.ambiguity, rel=1e-10, abs=1e-12
    )
    assert parts.ambiguity >= -1e-12
    order = np.random.default_rng(seed).permutation(M)
    shuffled = metrics.loss_decomposition(y, probas[order], loss=loss)
    assert shuffled == pytest.approx(parts, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_certain_members_and_many_samples(loss):
    """Zeros are clipped before the logarithm; several chunks are averaged."""
    probas = np.tile([[[1.0, 0.0]], [[0.0, 1.0]]], (1, 2500, 1))
    parts = metrics.loss_decomposition(np.zeros(2500, int), probas, loss=loss)
    assert np.isfinite(parts).all()
    assert parts.ensemble_loss == pytest.approx(parts.member_loss - parts.ambiguity)


def test_invalid_options_raise():
    y, probas = random_members()
    with pytest.raises(InvalidInputError, match=r"Unknown loss 'mse'.*'squared_error'"):
        metrics.loss_decomposition(y, probas, loss="mse")
    with pytest.raises(
        InvalidInputError, match=r"eps must be a float in the range \(0.0, 1.0\)"
    ):
        metrics.loss_decomposition(y, probas, eps=2)
