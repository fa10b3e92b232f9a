"""Displays of the accuracy on corrupted samples."""

import warnings
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import CorruptionDisplay

rng = np.random.default_rng(1)


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


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"member_accuracy": np.ones((1, 2))}, {}, r"got \(1, 2\) and \(2, 2\)"),
        ({}, {"kind": "pie"}, "kind must be 'lines' or 'mean'"),
        ({"names": ["a"]}, {}, "one name for each of 2 ensembles"),
        ({"severities": [1]}, {}, "2 severities, got"),
        ({"severities": [1, 2, 3]}, {}, "2 severities, got"),
    ],
)
def test_invalid_accuracies_raise_before_a_figure_is_made(arguments, options, message):
    with pytest.raises(InvalidInputError, match=message):
        CorruptionDisplay(np.ones((2, 2)), **arguments).plot(**options)
    assert not plt.get_fignums()


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


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_bars_without_height_are_drawn(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = CorruptionDisplay([[value, value]], names=["a" * 90]).plot(
            kind="mean"
        )
        display.figure_.draw_without_rendering()
    assert len(display.bars_) == 1
