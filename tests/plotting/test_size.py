"""A metric against the number of members, compared with naive loops."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.aggregation.rules import TemperatureAggregation
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import EnsembleSizeDisplay
from sklearn_sharpbalance.plotting._base import PALETTE
from sklearn_sharpbalance.plotting.size import member_subsets
from tests.plotting.made_up import PROBAS, Y, geometric_mean


def brier(y, p):
    return brier_score_loss(y, p, labels=range(4))


@pytest.mark.parametrize(
    ("metric", "function"),
    [
        ("accuracy", lambda y, p: accuracy_score(y, p.argmax(1))),
        ("nll", lambda y, p: log_loss(y, p, labels=range(4))),
        ("brier", brier),
        ("ece", metrics.expected_calibration_error),
        (brier, brier),
    ],
)
def test_scores_of_all_subsets_equal_a_loop(metric, function):
    display = EnsembleSizeDisplay.from_predictions(Y, PROBAS, metric=metric)
    for size, scores in zip(range(1, 6), display.scores):
        expected = [
            function(Y, geometric_mean([PROBAS[i] for i in rows]))
            for rows in combinations(range(5), size)
        ]
        np.testing.assert_allclose(scores, expected)
    means = [np.mean(scores) for scores in display.scores]
    np.testing.assert_allclose(display.line_.get_ydata(), means)


def test_subsets_are_drawn_without_repetition():
    drawn = member_subsets(10, 4)  # of 210
    assert len(set(drawn)) == len(drawn) == 100
    assert all(len(set(rows)) == 4 and max(rows) < 10 for rows in drawn)
    assert drawn == member_subsets(10, 4)
    assert len(member_subsets(5, 2)) == 10


def test_size_lines_on_one_axes_have_different_colours(ensemble, digits):
    first = EnsembleSizeDisplay.from_estimator(ensemble, digits.X, digits.y, name="a")
    second = EnsembleSizeDisplay.from_predictions(Y, PROBAS, name="b", ax=first.ax_)
    assert second.line_.get_color() == PALETTE[1]
    assert list(first.ax_.get_xticks()) == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidInputError, match="Unknown metric 'acc'"):
        EnsembleSizeDisplay.from_predictions(Y, PROBAS, metric="acc")


def test_size_uses_the_given_aggregation():
    def first_member(logits):
        return np.exp(logits[0])

    display = EnsembleSizeDisplay.from_predictions(Y, PROBAS, aggregation=first_member)
    expected = accuracy_score(Y, PROBAS[0].argmax(1))
    assert display.scores[-1][0] == pytest.approx(expected)


def small_ensemble(aggregation, digits):
    return DeepEnsembleClassifier(
        n_estimators=3,
        max_epochs=2,
        aggregation=aggregation,
        validation_fraction=0.3,
        random_state=0,
        device="cpu",
    ).fit(digits.X, digits.y)


@pytest.mark.parametrize("aggregation", ["temperature", "majority"])
def test_size_uses_the_aggregation_of_the_estimator(aggregation, digits):
    fitted = small_ensemble(aggregation, digits)
    display = EnsembleSizeDisplay.from_estimator(
        fitted, digits.X, digits.y, metric="nll"
    )
    codes = np.searchsorted(fitted.classes_, digits.y)
    first, *_, whole = fitted.staged_predict_proba(digits.X)
    for proba, score in ((first, display.scores[0][0]), (whole, display.scores[-1][0])):
        assert score == pytest.approx(log_loss(codes, proba), rel=1e-6)
    if aggregation == "temperature":
        assert abs(fitted.aggregation_.temperature_ - 1) > 0.01  # it has an effect


@pytest.mark.parametrize("aggregation", ["best_member", "uniform_soup", "greedy_soup"])
def test_size_raises_if_the_rule_does_not_combine_predictions(aggregation, digits):
    fitted = small_ensemble(aggregation, digits)
    message = "cannot combine probabilities alone"
    with pytest.raises(InvalidInputError, match=message):
        EnsembleSizeDisplay.from_estimator(fitted, digits.X, digits.y)
    for rule in (aggregation, fitted.aggregation_):
        with pytest.raises(InvalidInputError, match=message):
            EnsembleSizeDisplay.from_predictions(Y, PROBAS, aggregation=rule)


@pytest.mark.parametrize("rule", ["temperature", TemperatureAggregation()])
def test_size_raises_on_an_unfitted_temperature(rule):
    with pytest.raises(InvalidInputError, match="aggregation_ of a fitted ensemble"):
        EnsembleSizeDisplay.from_predictions(Y, PROBAS, aggregation=rule)


def test_ticks_of_many_sizes_do_not_overlap():
    scores = [[0.9, 0.8]] * 40
    display = EnsembleSizeDisplay(np.arange(1, 41), scores).plot()
    display.figure_.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in display.ax_.get_xticklabels()]
    assert len(boxes) > 5
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
