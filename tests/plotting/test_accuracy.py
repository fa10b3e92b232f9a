"""Reliability, corruption and size, against naive loops and scikit-learn."""

import warnings
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.aggregation.rules import TemperatureAggregation
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import (
    CorruptionDisplay,
    EnsembleSizeDisplay,
    ReliabilityDisplay,
)
from sklearn_sharpbalance.plotting._base import PALETTE
from sklearn_sharpbalance.plotting._ensembles import member_subsets
from tests.plotting.made_up import PROBAS, Y, geometric_mean

rng = np.random.default_rng(1)


def test_bars_show_accuracy_and_gap_of_each_bin():
    proba = geometric_mean(PROBAS)
    display = ReliabilityDisplay.from_predictions(Y, proba, n_bins=5)
    confidence, right = proba.max(1), proba.argmax(1) == Y
    bars = iter(zip(display.bars_, display.gaps_, display.shares_))
    for b in range(5):
        inside = (confidence > b / 5) & (confidence <= (b + 1) / 5)
        if not inside.any():
            continue
        bar, gap, share = next(bars)
        assert bar.get_x() == pytest.approx(b / 5)
        assert bar.get_height() == pytest.approx(right[inside].mean())
        top = gap.get_y() + gap.get_height()
        assert top == pytest.approx(confidence[inside].mean())
        assert share.get_height() == pytest.approx(inside.mean())
    assert next(bars, None) is None


def test_reliability_lines_of_several_predictors_share_axes():
    first = ReliabilityDisplay.from_predictions(Y, PROBAS[0], kind="line", name="a")
    second = ReliabilityDisplay.from_predictions(
        Y, PROBAS[1], kind="line", name="b", ax=first.ax_
    )
    assert first.line_.get_color() == PALETTE[0]
    assert second.line_.get_color() == PALETTE[1]
    assert second.diagonal_ is None  # there is one already
    texts = [t.get_text() for t in first.ax_.get_legend().get_texts()]
    assert texts == [f"a (ECE {first.ece:.3f})", f"b (ECE {second.ece:.3f})"]
    with pytest.raises(InvalidInputError, match="kind must be 'bars' or 'line'"):
        first.plot(kind="dots")


def test_accuracies_equal_a_loop():
    probas = rng.dirichlet(np.ones(4), size=(3, 2, 5, 60))
    display = CorruptionDisplay.from_predictions(Y, {"a": probas, "b": probas[0]})
    for s in range(2):
        whole = [accuracy_score(Y, geometric_mean(p[s]).argmax(1)) for p in probas]
        member = [accuracy_score(Y, q.argmax(1)) for p in probas for q in p[s]]
        assert display.accuracy[0, s] == pytest.approx(np.mean(whole))
        assert display.member_accuracy[0, s] == pytest.approx(np.mean(member))
        assert display.accuracy[1, s] == pytest.approx(whole[0])
    heights = display.plot(kind="lines").lines_[0].get_ydata()
    np.testing.assert_allclose(heights, 100 * display.accuracy[0])


@pytest.mark.parametrize("kind", ["bars", "mean"])
def test_bars_are_members_below_and_gain_above(kind):
    accuracy = np.array([[0.9, 0.8], [0.7, 0.75]])
    member = np.array([[0.85, 0.7], [0.6, 0.8]])
    display = CorruptionDisplay(accuracy, member_accuracy=member).plot(kind=kind)
    if kind == "mean":
        accuracy, member = accuracy.mean(1)[:, None], member.mean(1)[:, None]
    for k in range(2):
        for s, (low, gain) in enumerate(zip(display.member_bars_[k], display.bars_[k])):
            assert low.get_height() == pytest.approx(100 * member[k, s])
            top = gain.get_y() + gain.get_height()
            assert top == pytest.approx(100 * accuracy[k, s])
    low, high = display.ax_.get_ylim()
    assert low < 100 * member.min()
    assert high > 100 * accuracy.max()


def test_wrong_accuracies_are_refused():
    with pytest.raises(InvalidInputError, match=r"got \(1, 2\) and \(2, 2\)"):
        CorruptionDisplay(np.ones((2, 2)), member_accuracy=np.ones((1, 2))).plot()
    with pytest.raises(InvalidInputError, match="kind must be 'lines', 'bars' or"):
        CorruptionDisplay(np.ones((2, 2))).plot(kind="pie")
    with pytest.raises(InvalidInputError, match="of 'a' must have shape"):
        CorruptionDisplay.from_predictions(Y, {"a": PROBAS})
    with pytest.raises(InvalidInputError, match=r"same severities.* \[1, 2\]"):
        CorruptionDisplay.from_predictions(
            Y, {"a": PROBAS[None], "b": np.stack([PROBAS, PROBAS])}
        )
    with pytest.raises(InvalidInputError, match="one name for each of 2 ensembles"):
        CorruptionDisplay(np.ones((2, 2)), names=["a"]).plot()


METHODS = ["deep ensemble", "SAM ensemble (selection all)", "SharpBalance"]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["lines", "bars", "mean"])
def test_legend_and_names_of_methods_cover_nothing(kind, given):
    accuracy = 0.98 - 0.07 * np.arange(3)[:, None] - 0.007 * np.arange(5)
    display = CorruptionDisplay(
        accuracy, member_accuracy=accuracy - 0.02, names=METHODS
    )
    ax = plt.subplots()[1] if given else None
    display.plot(ax, kind=kind).figure_.canvas.draw()
    ax = display.ax_
    box = ax.get_legend().get_window_extent()
    assert box.y0 >= ax.get_window_extent().y1
    assert box.x1 <= display.figure_.bbox.x1
    assert box.y1 <= display.figure_.bbox.y1
    names = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(names))


def test_names_that_cannot_be_wrapped_are_turned():
    display = CorruptionDisplay(np.full((6, 1), 0.9), names=["n" * 20] * 6)
    labels = display.plot(kind="mean").ax_.get_xticklabels()
    assert {label.get_rotation() for label in labels} == {35.0}


@pytest.mark.parametrize("corruptions", ["feature_shift", "all"])
def test_corruptions_by_one_name(corruptions, ensemble, digits):
    names = {"feature_shift": ["feature_shift"], "all": None}[corruptions]
    got, want = (
        CorruptionDisplay.from_estimator(
            ensemble, digits.X, digits.y, corruptions=kinds, severities=(1, 3)
        )
        for kinds in (corruptions, names)
    )
    np.testing.assert_array_equal(got.accuracy, want.accuracy)


@pytest.mark.parametrize(
    ("metric", "function"),
    [
        ("accuracy", lambda y, p: accuracy_score(y, p.argmax(1))),
        ("error", lambda y, p: 1 - accuracy_score(y, p.argmax(1))),
        ("nll", lambda y, p: log_loss(y, p, labels=range(4))),
        ("brier", metrics.brier_score),
        ("ece", metrics.expected_calibration_error),
        (metrics.brier_score, metrics.brier_score),
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


def test_improvement_of_one_member_is_zero():
    display = EnsembleSizeDisplay.from_predictions(Y, PROBAS, metric="improvement")
    assert not display.scores[0].any()
    member = np.mean(PROBAS.argmax(2) != Y)
    whole = np.mean(geometric_mean(PROBAS).argmax(1) != Y)
    assert display.scores[-1][0] == pytest.approx((member - whole) / member)


def test_subsets_are_drawn_without_repetition():
    drawn = member_subsets(10, 4, 50, np.random.default_rng(0))
    assert len(set(drawn)) == len(drawn) == 50
    assert all(len(set(rows)) == 4 and max(rows) < 10 for rows in drawn)
    assert drawn == member_subsets(10, 4, 50, np.random.default_rng(0))
    assert len(member_subsets(5, 2, 10, np.random.default_rng(0))) == 10


def test_size_lines_of_several_ensembles_share_axes(ensemble, digits):
    first = EnsembleSizeDisplay.from_estimator(ensemble, digits.X, digits.y, name="a")
    second = EnsembleSizeDisplay.from_predictions(Y, PROBAS, name="b", ax=first.ax_)
    assert second.line_.get_color() == PALETTE[1]
    assert list(first.ax_.get_xticks()) == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidInputError, match="Unknown metric 'acc'"):
        EnsembleSizeDisplay.from_predictions(Y, PROBAS, metric="acc")


def test_size_uses_the_aggregation_of_the_estimator(ensemble, digits):
    def first_member(logits):
        return np.exp(logits[0])

    display = EnsembleSizeDisplay.from_estimator(
        ensemble, digits.X, digits.y, aggregation=first_member
    )
    proba = ensemble.member_predict_proba(digits.X)[0]
    expected = accuracy_score(digits.y, ensemble.classes_[proba.argmax(1)])
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


def largest_logit(logits):
    """Unlike a mean, it changes if a member's logits are shifted."""
    powers = np.exp(logits.max(axis=0))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("aggregation", ["temperature", "majority", largest_logit])
def test_size_draws_what_the_estimator_predicts(aggregation, digits):
    fitted = small_ensemble(aggregation, digits)
    display = EnsembleSizeDisplay.from_estimator(
        fitted, digits.X, digits.y, metric="nll"
    )
    codes = np.searchsorted(fitted.classes_, digits.y)
    first, *_, whole = fitted.staged_predict_proba(digits.X)
    for proba, score in ((first, display.scores[0][0]), (whole, display.scores[-1][0])):
        assert score == pytest.approx(log_loss(codes, proba), rel=1e-6)
    if aggregation == "temperature":
        assert abs(fitted.aggregation_.temperature_ - 1) > 0.01  # so that it matters
        again = EnsembleSizeDisplay.from_predictions(
            codes,
            fitted.member_predict_proba(digits.X),
            metric="nll",
            aggregation=fitted.aggregation_,
        )
        np.testing.assert_allclose(again.scores[1], display.scores[1])


@pytest.mark.parametrize("aggregation", ["best_member", "uniform_soup", "greedy_soup"])
def test_size_refuses_what_is_not_made_of_predictions(aggregation, digits):
    fitted = small_ensemble(aggregation, digits)
    message = r"predicts by \w+Aggregation\(\), .* for example aggregation='mean_logit'"
    with pytest.raises(InvalidInputError, match=message):
        EnsembleSizeDisplay.from_estimator(fitted, digits.X, digits.y)
    display = EnsembleSizeDisplay.from_estimator(
        fitted, digits.X, digits.y, aggregation="mean_logit"
    )
    assert len(display.scores) == 3
    for rule in (aggregation, fitted.aggregation_):
        with pytest.raises(InvalidInputError, match="no rule on probabilities alone"):
            EnsembleSizeDisplay.from_predictions(Y, PROBAS, aggregation=rule)


@pytest.mark.parametrize("rule", ["temperature", TemperatureAggregation()])
def test_size_refuses_a_temperature_that_nobody_found(rule):
    with pytest.raises(InvalidInputError, match="aggregation_ of a fitted ensemble"):
        EnsembleSizeDisplay.from_predictions(Y, PROBAS, aggregation=rule)


def test_missing_accuracies_leave_gaps():
    display = CorruptionDisplay([[0.8, np.nan], [0.7, 0.6]], names=["a", "b"])
    bars = display.plot(kind="bars").bars_
    assert bars[1][1].get_height() == pytest.approx(60)
    assert display.ax_.get_ylim() == pytest.approx((50, 82.4))
    display.plot(kind="mean")
    assert [text.get_text() for text in display.ax_.texts] == ["65.00"]


def test_numbers_over_many_bars_do_not_overlap():
    display = CorruptionDisplay(rng.uniform(0.6, 0.61, (20, 3))).plot(kind="mean")
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.ax_.texts]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_many_sizes_have_ticks_that_keep_apart():
    scores = [[0.9, 0.8]] * 40
    display = EnsembleSizeDisplay(np.arange(1, 41), scores).plot()
    display.figure_.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in display.ax_.get_xticklabels()]
    assert len(boxes) > 5
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


@pytest.mark.parametrize("n_predictors", [1, 20])
def test_legends_of_long_names_stay_in_the_figure(n_predictors):
    figure, ax = plt.subplots(figsize=(5, 6), layout="constrained")
    name = "a predictor " if n_predictors > 1 else "a predictor with a long name " * 3
    for i in range(n_predictors):
        ReliabilityDisplay(
            [0.3, 0.8], [0.2, 0.9], [5, 5], [0, 0.5, 1], ece=0.1, name=f"{name}{i}"
        ).plot(ax, kind="line")
    for _ in range(2):  # as savefig does: the first settles the layout
        figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    assert box.x1 <= figure.bbox.x1 + 1
    assert box.y1 <= figure.bbox.y1 + 1
    assert ax.get_position().height > 0.3


def test_severities_must_fit_the_accuracies():
    for severities in ([1], [1, 2, 3]):
        with pytest.raises(InvalidInputError, match="2 severities, got"):
            CorruptionDisplay([[0.1, 0.2]], severities=severities).plot()
    with pytest.raises(InvalidInputError, match="no ensembles"):
        CorruptionDisplay.from_predictions(Y, {})
    assert not plt.get_fignums()


@pytest.mark.parametrize("kind", ["bars", "mean"])
@pytest.mark.parametrize("value", [0.0, np.nan])
def test_bars_without_height_are_drawn(kind, value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = CorruptionDisplay([[value, value]], names=["a" * 90]).plot(kind=kind)
        display.figure_.canvas.draw()
    assert len(display.bars_) == 1


def test_share_of_samples_is_seen_on_a_dark_ground():
    with plt.style.context("dark_background"):
        display = ReliabilityDisplay.from_predictions(Y, geometric_mean(PROBAS))
    assert display.shares_[0].get_edgecolor() == (1, 1, 1, 1)
