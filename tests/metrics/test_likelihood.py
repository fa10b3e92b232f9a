"""NLL against scikit-learn; temperature: minimum, invariances and bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    fit_temperature,
    negative_log_likelihood,
    nll_after_temperature,
)
from sklearn_sharpbalance.metrics.likelihood import temperature_or_one
from tests.metrics.helpers import random_members, warns_once


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("C", [2, 5])
def test_nll_equals_scikit_learn(C, dtype):
    y, probas = random_members(1, 200, C, dtype=dtype)
    proba, labels = np.clip(probas[0], 0, 1), np.arange(C)
    expected = log_loss(y, proba, labels=labels)
    assert negative_log_likelihood(y, proba) == pytest.approx(expected, rel=1e-5)
    y = y.clip(max=C - 2)  # the last class is missing
    expected = log_loss(y, proba, labels=labels)
    assert negative_log_likelihood(y, proba) == pytest.approx(expected, rel=1e-5)
    certain = np.array([[1, 0], [0, 1]], dtype=dtype)
    assert negative_log_likelihood([0, 1], certain) == 0
    assert negative_log_likelihood([1, 1], certain) == pytest.approx(
        -np.log(np.finfo(dtype).eps) / 2
    )


def test_sample_weights_equal_scikit_learn():
    y, probas = random_members(1, 200, 5)
    weight = np.random.default_rng(0).random(200)
    expected = log_loss(y, probas[0], labels=np.arange(5), sample_weight=weight)
    for scale in (1.0, 1e308):
        found = negative_log_likelihood(y, probas[0], sample_weight=scale * weight)
        assert found == pytest.approx(expected)
    with pytest.raises(InvalidInputError, match="sample_weight"):
        negative_log_likelihood(y, probas[0], sample_weight=weight[:3])


def logits_and_labels(N=200, C=4, seed=0, sharpen=3.0):
    """Return logits that are ``sharpen`` times too large for their labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(N, C)) * 1.5
    draws = rng.gumbel(size=(N, C))
    return (logits + draws).argmax(1), logits * sharpen


def nll_at(temperature, y, logits):
    return -log_softmax(logits / temperature, axis=1)[np.arange(len(y)), y].mean()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), factor=st.floats(0.2, 5.0))
def test_logits_probabilities_and_scale_agree(seed, factor):
    y, logits = logits_and_labels(seed=seed)
    temperature = fit_temperature(y, logits)
    assert fit_temperature(y, softmax(logits, axis=1)) == pytest.approx(
        temperature, rel=1e-6
    )
    assert fit_temperature(y, logits * factor) == pytest.approx(
        temperature * factor, rel=1e-6
    )
    assert fit_temperature(y, logits + 100) == pytest.approx(temperature, rel=1e-6)


def best_temperature(y, logits):
    best = minimize_scalar(
        lambda t: nll_at(np.exp(t), y, logits),
        bounds=(-4.6, 4.6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return pytest.approx(np.exp(best.x), rel=1e-5)


@pytest.mark.parametrize("sharpen", [0.2, 1.0, 8.0])
def test_temperature_is_the_minimum(sharpen):
    y, logits = logits_and_labels(sharpen=sharpen)
    assert fit_temperature(y, logits) == best_temperature(y, logits)


def test_kind_distinguishes_logits_that_look_like_probabilities():
    y, probas = random_members(1, 200, 3)
    as_logits = fit_temperature(y, probas[0], kind="logits")
    assert as_logits == best_temperature(y, probas[0])
    assert as_logits != pytest.approx(fit_temperature(y, probas[0]), rel=0.1)
    assert fit_temperature(y, probas[0], kind="proba") == fit_temperature(y, probas[0])
    y[0], probas[0, 0] = 0, [1 + 1e-9, 0.0, -1e-9]  # just below zero
    assert fit_temperature(y, probas[0], kind="proba") == fit_temperature(y, probas[0])


@pytest.mark.parametrize("gap", [0.1, 1, 2, 30, 1e6])
def test_all_right_ends_at_the_lower_and_all_wrong_at_the_upper_bound(gap):
    """With a large gap the slope is exactly zero."""
    y = np.arange(12) % 3
    with warns_once() as caught:
        assert fit_temperature(y, gap * np.eye(3)[y], kind="logits") == 0.01
    assert "still falls at the bound 0.01" in str(caught[0].message)
    with warns_once():
        assert fit_temperature((y + 1) % 3, np.eye(3)[y]) == 100.0


@pytest.mark.parametrize("gap", [1e-3, 0.1, 1, 5])
def test_one_small_error_between_certain_predictions(gap):
    """The slope is nearly constant far from its root."""
    y = np.arange(12) % 3
    logits = 30 * np.eye(3)[y]
    logits[0] = [0, gap, -1e6]

    def slope(beta):  # of the summed loss
        right = 11 * -60 * np.exp(-30 * beta) / (1 + 2 * np.exp(-30 * beta))
        return gap / (1 + np.exp(-gap * beta)) + right

    root = brentq(slope, 1e-3, 1e3, xtol=1e-14, rtol=1e-14)
    found = fit_temperature(y, logits, kind="logits")
    assert found == pytest.approx(1 / root, rel=1e-8)


def test_sample_weights_equal_repetitions():
    rng = np.random.default_rng(0)
    y, times = rng.integers(3, size=90), np.arange(90) % 4
    logits = 3 * rng.normal(size=(90, 3)) + 2 * np.eye(3)[y]
    repeated = temperature_or_one(y.repeat(times), logits.repeat(times, axis=0))
    weighted = temperature_or_one(y, logits, times.astype(np.float32))
    assert weighted == pytest.approx(repeated, rel=1e-9)
    unweighted = temperature_or_one(y, logits)
    assert weighted != pytest.approx(unweighted, rel=1e-3)


def test_temperature_is_one_if_none_is_the_best():
    y, logits = logits_and_labels()
    assert temperature_or_one(y, logits) == fit_temperature(y, logits)
    for labels in (logits.argmax(1), logits.argmin(1)):
        with warns_once() as caught:
            assert temperature_or_one(labels, logits) == 1.0
        assert "200 validation samples set no temperature" in str(caught[0].message)


def test_same_data_gives_the_minimum():
    y, logits = logits_and_labels()
    value = nll_after_temperature(y, logits, cv=None)
    best = fit_temperature(y, logits)
    assert value == pytest.approx(nll_at(best, y, logits), rel=1e-12)
    assert value == pytest.approx(log_loss(y, softmax(logits / best, axis=1)))
    assert value < nll_at(1.0, y, logits)


def test_cross_fit_scores_each_fold_with_the_others_temperature():
    y, logits = logits_and_labels(N=61)
    total = 0.0
    for train, test in KFold(3, shuffle=True, random_state=0).split(logits):
        best = fit_temperature(y[train], logits[train])
        total += nll_at(best, y[test], logits[test]) * len(test)
    value = nll_after_temperature(y, logits, cv=3)
    assert value == pytest.approx(total / 61, rel=1e-10)
    assert value > nll_after_temperature(y, logits, cv=None)


def test_zero_and_equal_probabilities_stay_finite():
    assert fit_temperature([0, 1, 2], np.full((3, 3), 1 / 3)) == 1.0
    proba = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32)
    temperature = fit_temperature([0, 1, 1, 0], proba)
    assert np.isfinite(temperature)
    assert temperature > 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, z: fit_temperature(y, z, kind="odds"), "Unknown kind 'odds'"),
        (lambda y, z: nll_after_temperature(y, z, cv=1), "cv must be None or .*got 1"),
        (lambda y, z: nll_after_temperature(y[:2], z[:2], cv=3), "to the 2 samples"),
        (lambda y, z: fit_temperature(y, z[None]), r"proba_or_logits must have shape"),
        (lambda y, z: fit_temperature(y, z * np.nan), "infinite values or NaN"),
        (lambda y, z: fit_temperature(y[:0], z[:0]), r"is empty: it has shape \(0,"),
    ],
)
def test_invalid_input_raises(call, message):
    y, logits = logits_and_labels(20)
    with pytest.raises(InvalidInputError, match=message):
        call(y, logits)
