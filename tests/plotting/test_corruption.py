"""Displays of the accuracy on corrupted samples."""

import warnings
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import CorruptionDisplay
from tests.plotting.made_up import PROBAS, Y, geometric_mean

rng = np.random.default_rng(1)


def test_accuracies_equal_a_loop():
    probas = rng.dirichlet(np.ones(4), size=(3, 2, 5, 60))
    display = CorruptionDisplay.from_predictions(Y, {"a": probas, "b": probas[0]})
    for s in range(2):
        whole = [accuracy_score(Y, geometric_mean(p[s]).argmax(1)) for p in probas]
        member = [accuracy_score(Y, q.argmax(1)) for p in probas for q in p[s]]
        assert display.accuracy[0, s] == pytest.approx(np.mean(whole))
        assert display.member_accuracy[0, s] == pytest.approx(np.mean(member))
        assert display.accuracy[1, s] == pytest.approx(whole[0])
    heights = display.lines_[0].get_ydata()
    np.testing.assert_allclose(heights, 100 * display.accuracy[0])


def test_gain_of_the_ensemble_is_above_the_members_bar():
    accuracy, member = np.array([[0.9, 0.8], [0.7, 0.75]]), [[0.85, 0.7], [0.6, 0.8]]
    display = CorruptionDisplay(accuracy, member_accuracy=member).plot(kind="mean")
    for k, (whole, part) in enumerate(zip(accuracy.mean(1), np.mean(member, 1))):
        (low,), (gain,) = display.member_bars_[k], display.bars_[k]
        assert low.get_height() == pytest.approx(100 * part)
        assert gain.get_y() + gain.get_height() == pytest.approx(100 * whole)
    low, high = display.ax_.get_ylim()
    assert low < 70
    assert high > 85


def test_invalid_accuracies_raise():
    with pytest.raises(InvalidInputError, match=r"got \(1, 2\) and \(2, 2\)"):
        CorruptionDisplay(np.ones((2, 2)), member_accuracy=np.ones((1, 2))).plot()
    with pytest.raises(InvalidInputError, match="kind must be 'lines' or 'mean'"):
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
@pytest.mark.parametrize("kind", ["lines", "mean"])
def test_legend_and_names_do_not_overlap(kind, given):
    accuracy = 0.98 - 0.07 * np.arange(3)[:, None] - 0.007 * np.arange(5)
    display = CorruptionDisplay(
        accuracy, member_accuracy=accuracy - 0.02, names=METHODS
    )
    ax = plt.subplots()[1] if given else None
    display.plot(ax, kind=kind).figure_.draw_without_rendering()
    ax = display.ax_
    box = ax.get_legend().get_window_extent()
    assert box.y0 >= ax.get_window_extent().y1
    assert box.x1 <= display.figure_.bbox.x1
    assert box.y1 <= display.figure_.bbox.y1
    names = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in pairwise(names))


def test_long_words_are_turned():
    display = CorruptionDisplay(np.full((6, 1), 0.9), names=["n" * 20] * 6)
    labels = display.plot(kind="mean").ax_.get_xticklabels()
    assert {label.get_rotation() for label in labels} == {35.0}


@pytest.mark.parametrize("corruptions", ["feature_shift", "all"])
def test_corruptions_may_be_one_name(corruptions, ensemble, digits):
    names = {"feature_shift": ["feature_shift"], "all": None}[corruptions]
    got, want = (
        CorruptionDisplay.from_estimator(
            ensemble, digits.X, digits.y, corruptions=kinds, severities=(1, 3)
        )
        for kinds in (corruptions, names)
    )
    np.testing.assert_array_equal(got.accuracy, want.accuracy)


def test_missing_accuracies_leave_gaps():
    display = CorruptionDisplay([[0.8, np.nan], [0.7, 0.6]], names=["a", "b"])
    display.plot(kind="mean")
    assert [text.get_text() for text in display.ax_.texts] == ["65.00"]
    assert len(display.bars_) == 2


def test_numbers_over_many_bars_do_not_overlap():
    display = CorruptionDisplay(rng.uniform(0.6, 0.61, (20, 3))).plot(kind="mean")
    display.figure_.draw_without_rendering()
    boxes = [text.get_window_extent() for text in display.ax_.texts]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_wrong_number_of_severities_raises():
    for severities in ([1], [1, 2, 3]):
        with pytest.raises(InvalidInputError, match="2 severities, got"):
            CorruptionDisplay([[0.1, 0.2]], severities=severities).plot()
    with pytest.raises(InvalidInputError, match="no ensembles"):
        CorruptionDisplay.from_predictions(Y, {})
    assert not plt.get_fignums()


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_bars_without_height_are_drawn(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = CorruptionDisplay([[value, value]], names=["a" * 90]).plot(
            kind="mean"
        )
        display.figure_.draw_without_rendering()
    assert len(display.bars_) == 1
