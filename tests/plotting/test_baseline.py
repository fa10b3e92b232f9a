"""Compare three figures with stored pictures, without text, since fonts differ.

Run ``python -m tests.plotting.test_baseline`` to draw the pictures again.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from sklearn_sharpbalance.plotting import (
    CorruptionDisplay,
    LossLandscapeDisplay,
    TradeoffDisplay,
)

FOLDER = Path(__file__).parent / "baseline"
TOLERANCE = 4.0  # root mean square, of 255; one bar lower by 0.01 gives 7


def tradeoff(ax, slope=0.4):
    x = np.array([0.3, 0.42, 0.6, 0.76, 0.8, 0.9])
    y = np.r_[slope * x, slope * x + 0.1] + 0.3
    display = TradeoffDisplay(
        np.r_[x, x], y, color=np.r_[x, x], groups=["a"] * 6 + ["b"] * 6
    )
    display.plot(ax, colorbar=False)


def corruption(ax, top=0.9):
    accuracy = np.array([[top, 0.8, 0.6], [0.92, 0.82, 0.7]])
    display = CorruptionDisplay(accuracy, member_accuracy=accuracy - 0.04)
    display.plot(ax, kind="mean")


def landscape(ax, width=1.0):
    steps = np.linspace(-1, 1, 21)
    x, y = np.meshgrid(steps, steps)
    loss = 0.1 + (x / width) ** 2 + 3 * y**2
    LossLandscapeDisplay(loss, steps, steps).plot(ax, colorbar=False)


FIGURES = {
    "tradeoff": (tradeoff, 0.5),
    "corruption": (corruption, 0.85),
    "landscape": (landscape, 0.8),
}


def drawn(draw, *args):
    """Return the figure as (H, W, 3), at half its size to reduce smoothing effects."""
    figure = plt.figure(figsize=(4, 3), dpi=80)
    ax = figure.add_axes((0.05, 0.05, 0.9, 0.9))
    draw(ax, *args)
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()
    for text in figure.findobj(Text):
        text.set_visible(False)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(float)
    plt.close(figure)
    h, w, _ = pixels.shape
    return pixels.reshape(h // 2, 2, w // 2, 2, 3).mean((1, 3))


def distance(a, b):
    return np.sqrt(np.mean((a - b) ** 2))


@pytest.mark.parametrize("name", FIGURES)
def test_figure_equals_its_baseline(name):
    draw, other = FIGURES[name]
    expected = np.asarray(Image.open(FOLDER / f"{name}.png"), dtype=float)
    assert distance(drawn(draw), expected) < TOLERANCE
    # A figure of slightly different numbers exceeds the tolerance.
    assert distance(drawn(draw, other), expected) > TOLERANCE


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, (draw, _) in FIGURES.items():
        pixels = drawn(draw).round().astype(np.uint8)
        Image.fromarray(pixels).save(FOLDER / f"{name}.png", optimize=True)
