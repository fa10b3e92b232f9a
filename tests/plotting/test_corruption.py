"""Display of the accuracy on corrupted samples."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import CorruptionDisplay

METHODS = ["deep ensemble", "SAM ensemble (selection all)", "SharpBalance"]


def test_lines_are_accuracies_in_percent_above_which_is_the_legend():
    accuracy = 0.98 - 0.07 * np.arange(3)[:, None] - 0.007 * np.arange(5)
    display = CorruptionDisplay(
        accuracy, member_accuracy=accuracy - 0.02, names=METHODS
    ).plot()
    ys = [line.get_ydata() for line in display.lines_]
    np.testing.assert_allclose(ys[::2], 100 * accuracy)
    np.testing.assert_allclose(ys[1::2], 100 * accuracy - 2)
    display.figure_.draw_without_rendering()
    legend = display.ax_.get_legend()
    assert [t.get_text() for t in legend.get_texts()] == [*METHODS, "Members"]
    box = legend.get_window_extent()
    assert box.y0 >= display.ax_.get_window_extent().y1
    assert box.x1 <= display.figure_.bbox.x1
    assert box.y1 <= display.figure_.bbox.y1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"member_accuracy": np.ones((1, 2))}, r"got \(1, 2\) and \(2, 2\)"),
        ({"names": ["a"]}, "one name for each of 2 ensembles"),
    ],
)
def test_invalid_accuracies_raise_before_a_figure_is_made(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        CorruptionDisplay(np.ones((2, 2)), **arguments).plot()
    assert not plt.get_fignums()
