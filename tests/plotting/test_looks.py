"""Figures are readable on a dark background, with long names and on log axes."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from sklearn_sharpbalance.plotting import (
    LossLandscapeDisplay,
)
from sklearn_sharpbalance.plotting._base import PALETTE, colour

LONG = "A very long name of a method, longer than names should be, with rho = 0.05"


@pytest.fixture
def dark():
    with plt.style.context("dark_background"):
        yield


def lightness(color):
    """Return the perceived lightness, from 0 to 1."""
    return np.dot(to_rgb(color), (0.299, 0.587, 0.114))


@pytest.mark.usefixtures("dark")
def test_every_colour_is_visible_on_a_dark_background():
    _, ax = plt.subplots()
    assert min(lightness(colour(i, ax)) for i in range(len(PALETTE))) > 0.2


@pytest.mark.usefixtures("dark")
def test_names_in_white_boxes_are_black_on_a_dark_background():
    display = LossLandscapeDisplay(
        np.arange(9.0).reshape(3, 3),
        [0, 1, 2],
        [0, 1, 2],
        positions=[[0, 0], [1, 1]],
        position_names=["Member 0", "Member 1"],
    ).plot()
    texts = display.ax_.texts
    assert [text.get_text() for text in texts] == ["Member 0", "Member 1"]
    for text in texts:
        assert lightness(text.get_bbox_patch().get_facecolor()[:3]) == pytest.approx(1)
        assert lightness(text.get_color()) == 0


@pytest.mark.usefixtures("dark")
def test_the_grid_is_faint_on_a_dark_background():
    display = LossLandscapeDisplay([1.0, 0, 1], [0, 1, 2]).plot()
    line = display.ax_.get_ygridlines()[0]
    assert lightness(line.get_color()) * line.get_alpha() < 0.2


def inside(figure, artist):
    """Return whether an artist is inside its figure."""
    figure.draw_without_rendering()
    box, frame = artist.get_window_extent(), figure.bbox
    return frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1


def test_long_names_stay_in_the_figure_and_leave_room():
    display = LossLandscapeDisplay([1.0, 0, 1], [0, 1, 2], name=LONG).plot()
    assert inside(display.figure_, display.ax_.get_legend())
    width = display.ax_.get_window_extent().width
    assert width > 0.35 * display.figure_.bbox.width
