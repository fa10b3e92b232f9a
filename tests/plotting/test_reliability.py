"""Reliability diagrams, compared with naive loops."""

import pytest

from sklearn_sharpbalance.plotting import ReliabilityDisplay
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


def test_bins_of_few_samples_are_faint():
    made = ReliabilityDisplay(
        [0.1, 0.3, 0.8], [0.0, 0.2, 0.9], [3, 0, 50], [0, 0.2, 0.5, 1]
    )
    bars = made.plot()
    opacities = [bar.get_alpha() for bar in bars.bars_]
    assert opacities == [0.2, 0.6]
    assert [gap.get_alpha() for gap in bars.gaps_] == [0.2, None]
    assert bars.ax_.get_legend().legend_handles[0].get_alpha() == 0.6
    few = ReliabilityDisplay([0.2, 0.8], [0.1, 0.9], [3, 3], [0, 0.5, 1]).plot()
    assert [bar.get_alpha() for bar in few.bars_] == [0.6, 0.6]  # no bin has many
