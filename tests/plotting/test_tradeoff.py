"""Display of sharpness against diversity: points, colours, lines and labels."""

import warnings
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import linregress

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import TradeoffDisplay
from tests.cases import rest_slow

rng = np.random.default_rng(1)


def test_fitted_line_equals_scipys():
    x, y = rng.uniform(1, 5, 9), rng.uniform(1, 5, 9)
    expected = linregress(x, y)
    display = TradeoffDisplay(x, y).plot()
    assert display.slopes_["all"] == pytest.approx(expected.slope)
    at, drawn = display.lines_["all"].get_data()
    np.testing.assert_allclose(drawn, expected.intercept + expected.slope * at)
    assert TradeoffDisplay([1.0] * 3, [0.1, 0.2, 0.3]).plot().slopes_ == {}


def test_groups_share_a_colour_scale_and_have_their_own_lines():
    x = np.arange(6.0)
    display = TradeoffDisplay(
        x, np.r_[x[:3], 3 * x[3:]], color=x, groups=["a"] * 3 + ["b"] * 3
    ).plot()
    assert {s.get_clim() for s in display.scatters_.values()} == {(0.0, 5.0)}
    assert display.slopes_["a"] == pytest.approx(1)
    assert display.slopes_["b"] == pytest.approx(3)
    texts = [t.get_text() for t in display.ax_.get_legend().get_texts()]
    assert texts == [r"a ($\beta$ = 1)", r"b ($\beta$ = 3)"]


def test_labels_of_close_points_do_not_overlap():
    x = np.linspace(0, 1, 9)
    display = TradeoffDisplay(x, x, labels=[f"$\\rho$ = {v:.2f}" for v in x]).plot()
    display.figure_.draw_without_rendering()
    boxes = [t.get_window_extent() for t in display.texts_]
    for a, b in combinations(boxes, 2):
        assert not a.overlaps(b)


def legend_texts(display):
    return [t.get_text() for t in display.ax_.get_legend().get_texts()]


@pytest.mark.parametrize("seed", rest_slow([12, 28]))
def test_labels_stay_inside_the_axes(seed):
    draw = np.random.default_rng(seed)
    x = draw.random(10)
    y = 0.3 * x + 0.1 * draw.random(10)
    labels = [f"rho = 0.{i:02d}5" for i in range(10)]
    display = TradeoffDisplay(x, y, labels=labels).plot()
    display.figure_.draw_without_rendering()
    frame = display.ax_.bbox
    for text in display.texts_:
        box = text.get_window_extent()
        assert box.x0 > frame.x0 - 1
        assert box.x1 < frame.x1 + 1
        assert box.y0 > frame.y0 - 1


@pytest.mark.parametrize("off", rest_slow([np.nan, np.inf, -np.inf]))
def test_points_without_a_finite_colour_are_white(off):
    display = TradeoffDisplay([1, 2, 3], [0.1, 0.2, 0.4], color=[0.1, off, 0.2])
    display.labels = ["a", "b", "c"]
    scatter = display.plot().scatters_["all"]
    display.figure_.draw_without_rendering()
    assert scatter.get_clim() == (0.1, 0.2)
    assert len(scatter.get_offsets()) == 3
    first, white, last = scatter.get_facecolors()
    np.testing.assert_array_equal(white, np.ones(4))
    assert not np.allclose(first, last)
    assert legend_texts(display)[-1] == f"white, off the colour scale: {off:g}"
    assert len(display.texts_) == 3


def test_points_that_are_not_finite_are_left_out_and_listed():
    x, y = np.array([1, np.nan, 3, 4, 5.0]), np.array([0.1, 0.2, np.inf, 0.3, 0.6])
    display = TradeoffDisplay(x, y, color=[9, 0.5, 8, 1, 2], labels=list("abcde"))
    display.plot()
    expected = linregress(x[[0, 3, 4]], y[[0, 3, 4]])
    assert display.slopes_["all"] == pytest.approx(expected.slope)
    assert [t.get_text() for t in display.texts_] == ["a", "d", "e"]
    assert legend_texts(display)[-1] == "off the axes: b, c"
    assert display.scatters_["all"].get_clim() == (1.0, 9.0)
    nothing = TradeoffDisplay([np.nan, 1.0], [1.0, np.nan], color=[1, 2]).plot()
    assert legend_texts(nothing) == ["off the axes: Ensemble 1, Ensemble 2"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"diversity": [0.1, 0.2]}, r"diversity must hold 3 values.*got shape \(2,\)"),
        ({"color": [0.1, 0.2]}, "color must hold 3 values"),
        ({"groups": ["a"]}, "groups must hold 3 values"),
    ],
)
def test_arrays_of_different_lengths_raise(arrays, message):
    arrays = {"sharpness": [1, 2, 3], "diversity": [0.1, 0.2, 0.3]} | arrays
    with pytest.raises(InvalidInputError, match=message):
        TradeoffDisplay(**arrays).plot()
    assert not plt.get_fignums()


def test_long_names_of_groups_leave_room_for_the_axes():
    names = ["SharpBalanceEnsembleClassifier(selection='flattest_union')_" * 2] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns if the layout fails
        display = TradeoffDisplay([1, 2, 3], [1, 2, 2], groups=names).plot()
        display.figure_.draw_without_rendering()
    assert display.ax_.get_legend().get_window_extent().width < 0.9 * (
        display.figure_.bbox.width
    )


def test_axes_do_not_zoom_into_small_differences():
    x, y = [0.4001, 0.4012, 0.4003], [0.6, 0.601, 0.602]
    ax = TradeoffDisplay(x, y).plot().ax_
    for (low, high), largest in ((ax.get_xlim(), 0.4012), (ax.get_ylim(), 0.602)):
        assert high - low >= 0.18 * largest
    wide = TradeoffDisplay([0.1, 0.9, 0.5], y).plot().ax_
    assert wide.get_xlim()[1] < 1.1  # it is not made longer
