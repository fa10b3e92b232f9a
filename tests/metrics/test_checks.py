"""Every metric raises a helpful error for invalid input."""

import numpy as np
import pytest
import torch

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.metrics.helpers import random_members

OF_MEMBERS = [
    metrics.bma_score,
    metrics.disagreement,
    metrics.kl_diversity,
    metrics.mutual_information,
    metrics.predictive_diversity_score,
    metrics.unique_predictions,
]
OF_LABELS_AND_MEMBERS = [
    metrics.disagreement_error_ratio,
    metrics.ensemble_improvement_rate,
]
OF_LABELS_AND_PROBA = [
    metrics.calibration_curve_bins,
    metrics.expected_calibration_error,
    metrics.fit_temperature,
    metrics.negative_log_likelihood,
    metrics.nll_after_temperature,
]
WITH_LABELS = [(f, True) for f in OF_LABELS_AND_MEMBERS] + [
    (f, False) for f in OF_LABELS_AND_PROBA
]


def flat(value):
    """Return the numbers of a result: one, an array or a named tuple."""
    return np.hstack(value if isinstance(value, tuple) else [value])


@pytest.mark.parametrize("metric", OF_MEMBERS)
def test_members_without_probabilities_raise(metric):
    _, probas = random_members()
    with pytest.raises(InvalidInputError, match=r"probabilities in .0, 1.*softmax"):
        metric(np.log(probas))
    with pytest.raises(InvalidInputError, match="sum of a row differs by"):
        metric(probas / 2)


@pytest.mark.parametrize("metric", [*OF_MEMBERS, metrics.variance_diversity])
def test_one_predictor_raises_with_advice(metric):
    _, probas = random_members()
    message = r"must have shape \(n_members.*got \(40, 4\).*member_probas\[None\]"
    with pytest.raises(InvalidInputError, match=message):
        metric(probas[0])


@pytest.mark.parametrize("metric", [*OF_MEMBERS, metrics.variance_diversity])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_raise(metric, bad):
    _, probas = random_members()
    probas[1, 3, 2] = bad
    with pytest.raises(InvalidInputError, match=r"NaN|probabilities in"):
        metric(probas)


@pytest.mark.parametrize(
    ("probas", "message"),
    [
        (np.ones((0, 3, 2)), "is empty"),
        (np.ones((2, 0, 3)), "is empty"),
        (np.ones((2, 3, 1)), "at least two classes"),
        ([[["a", "b"]]], "array of real numbers, got list"),
    ],
)
def test_arrays_without_predictions_raise(probas, message):
    with pytest.raises(InvalidInputError, match=message):
        metrics.disagreement(probas)


@pytest.mark.parametrize(("metric", "members"), WITH_LABELS)
@pytest.mark.parametrize(
    "relabel",
    [lambda y: y + 1, lambda y: y - 1, lambda y: y + 0.5, lambda y: y.astype(str)],
)
def test_labels_that_are_not_codes_raise_with_advice(metric, members, relabel):
    y, probas = random_members()
    probas = probas if members else probas[0]
    with pytest.raises(InvalidInputError, match=r"class codes from 0 to 3.*labels="):
        metric(relabel(y), probas)
    with pytest.raises(InvalidInputError, match=r"y_true has 39 samples but .* has 40"):
        metric(y[:-1], probas)


@pytest.mark.parametrize(("metric", "members"), WITH_LABELS)
def test_labels_name_the_columns_in_any_order(metric, members):
    y, probas = random_members()
    names = np.array(["dog", "ant", "cat", "bee"])
    probas = probas if members else probas[0]
    expected = metric(y, probas)
    named = metric(names[y], probas, labels=names)
    np.testing.assert_array_equal(flat(named), flat(expected))


AB = np.array(["a", "b"], dtype=object)


@pytest.mark.parametrize(
    ("y", "labels", "message"),
    [
        (["a", None], AB, "Remove samples without a label"),
        (["a", np.nan], AB, "Remove samples without a label"),
        (["a", "a"], ["a", None], "cannot be compared"),
        (["a", "a"], np.array(["a", 1], dtype=object), "cannot be compared"),
        ([25, 10], [10, 20], r"label 25.* not in labels"),
        ([0, 1], [0, 1, 2], r"each of the 2 columns .* once"),
        ([0, 1], [2, 2], r"each of the 2 columns .* once"),
    ],
)
def test_labels_that_are_not_columns_raise(y, labels, message):
    y = np.array(y, dtype=object) if None in y or np.nan in y else y
    with pytest.raises(InvalidInputError, match=message):
        metrics.negative_log_likelihood(y, [[0.9, 0.1], [0.3, 0.7]], labels=labels)


@pytest.mark.parametrize("metric", OF_LABELS_AND_PROBA)
def test_one_column_means_the_second_of_two_classes(metric):
    y, probas = random_members(C=2)
    both, second = metric(y, probas[0]), metric(y, probas[0, :, 1])
    np.testing.assert_allclose(flat(both), flat(second), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("metric", OF_MEMBERS)
def test_lists_tensors_and_half_precision_are_accepted(metric):
    _, probas = random_members(dtype=np.float16)
    expected = metric(probas.astype(np.float32))
    np.testing.assert_array_equal(metric(probas), expected)
    np.testing.assert_array_equal(metric(torch.from_numpy(probas)), expected)
    np.testing.assert_allclose(metric(probas.tolist()), expected, rtol=1e-5, atol=1e-7)


def test_numbers_of_dtype_object_are_codes():
    y = np.array([[0, "a"], [1, "b"], [1, "c"]], dtype=object)[:, 0]
    proba = [[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]]
    expected = metrics.negative_log_likelihood([0, 1, 1], proba)
    assert metrics.negative_log_likelihood(y, proba) == expected
    with pytest.raises(InvalidInputError, match=r"codes from 0 to 1.*got \[0, None\]"):
        metrics.negative_log_likelihood([0, None, 0], proba)
