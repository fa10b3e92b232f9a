"""Reliability diagrams, compared with naive loops."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import ReliabilityDisplay
from sklearn_sharpbalance.plotting._base import PALETTE
from tests.plotting.made_up import PROBAS, Y, geometric_mean


def test_bars_are_accuracy_and_gap_of_each_bin():
    proba = geometric_mean(PROBAS)
    display = ReliabilityDisplay.from_predictions(Y, proba, n_bins=5)
    confidence, right = proba.max(1), proba.argmax(1) == Y
    bars = iter(zip(display.bars_, display.gaps_, display.fractions_))
    for b in range(5):
        inside = (confidence > b / 5) & (confidence <= (b + 1) / 5)
        if not inside.any():
            continue
        bar, gap, fraction = next(bars)
        assert bar.get_x() == pytest.approx(b / 5)
        assert bar.get_height() == pytest.approx(right[inside].mean())
        top = gap.get_y() + gap.get_height()
        assert top == pytest.approx(confidence[inside].mean())
        assert fraction.get_height() == pytest.approx(inside.mean())
    assert next(bars, None) is None


def test_reliability_lines_on_one_axes_have_different_colours():
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


@pytest.mark.parametrize(
    "n_predictors", [1, 5, pytest.param(20, marks=pytest.mark.slow)]
)
def test_legends_of_long_names_stay_inside_the_figure(n_predictors):
    figure, ax = plt.subplots(figsize=(5, 6), layout="constrained")
    name = "a predictor " if n_predictors > 1 else "a predictor with a long name " * 3
    for i in range(n_predictors):
        ReliabilityDisplay(
            [0.3, 0.8], [0.2, 0.9], [5, 5], [0, 0.5, 1], ece=0.1, name=f"{name}{i}"
        ).plot(ax, kind="line")
    for _ in range(2):  # as savefig does; the first pass computes the layout
        figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    assert box.x1 <= figure.bbox.x1 + 1
    assert box.y1 <= figure.bbox.y1 + 1
    assert ax.get_position().height > 0.3


def test_fraction_of_samples_is_white_on_a_dark_background():
    with plt.style.context("dark_background"):
        display = ReliabilityDisplay.from_predictions(Y, geometric_mean(PROBAS))
    assert display.fractions_[0].get_edgecolor() == (1, 1, 1, 1)


def test_bins_of_few_samples_are_faint():
    made = ReliabilityDisplay(
        [0.1, 0.3, 0.8], [0.0, 0.2, 0.9], [3, 0, 50], [0, 0.2, 0.5, 1]
    )
    bars = made.plot()
    opacities = [bar.get_alpha() for bar in bars.bars_]
    assert opacities == [0.2, 0.6]
    assert [gap.get_alpha() for gap in bars.gaps_] == [0.2, None]
    assert bars.ax_.get_legend().legend_handles[0].get_alpha() == 0.6
    lines = made.plot(kind="line")
    np.testing.assert_array_equal(lines.line_.get_xydata(), [[0.8, 0.9]])
    np.testing.assert_array_equal(lines.sparse_.get_xydata(), [[0.1, 0.0]])
    assert lines.sparse_.get_alpha() == 0.2
    few = ReliabilityDisplay([0.2, 0.8], [0.1, 0.9], [3, 3], [0, 0.5, 1]).plot()
    assert [bar.get_alpha() for bar in few.bars_] == [0.6, 0.6]  # no bin has many
