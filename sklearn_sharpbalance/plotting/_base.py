"""What the displays share: axes, colours, labels and legends."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

BLACK = "#000000"
# Okabe and Ito's palette, which is distinct with any colour vision and in print.
# Yellow is last but one, because it is faint on white.
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    BLACK,
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
GREY = "0.45"
# Uniform in lightness, so that it is readable in grey and with colour blindness.
SEQUENTIAL = "cividis"


class Display:
    """Base of the displays: ``__init__`` takes arrays, ``plot`` draws a figure.

    ``plot`` and the other constructors return the display. Other constructors take the
    parameters of ``plot``, too, such as ``ax``.
    """

    ax_: Any
    figure_: Any

    def _start(
        self, ax: Any, figsize: tuple[float, float] = (5.0, 3.8), square: bool = False
    ) -> Any:
        """Return the axes to draw on: the given ones, or those of a new figure."""
        if ax is None:
            import matplotlib.pyplot as plt

            # Only "compressed" leaves room for the labels of axes of fixed aspect.
            layout = "compressed" if square else "constrained"
            _, ax = plt.subplots(figsize=figsize, layout=layout)
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def ink(ax: Any) -> str:
    """Return the colour of text on axes: black, or white on a dark background."""
    return ax.xaxis.label.get_color()


def colour(i: int, ax: Any) -> str:
    """Return the colour of the i-th item on axes."""
    of_palette = PALETTE[i % len(PALETTE)]
    return ink(ax) if of_palette == BLACK else of_palette


def marker(i: int) -> str:
    """Return the marker of the i-th item; items of one colour differ in it."""
    return MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]


def n_drawn(ax: Any, kind: str) -> int:
    """Return how many curves of a kind are on the axes; ``gid`` tells the kind."""
    return sum(line.get_gid() == kind for line in ax.lines)


def draw_diagonal(ax: Any) -> Any:
    """Draw the diagonal and return it; return None if the axes have it."""
    if n_drawn(ax, "diagonal"):
        return None
    look: dict[str, Any] = {"ls": "--", "lw": 1, "color": GREY, "gid": "diagonal"}
    return ax.plot([0, 1], [0, 1], zorder=1.5, **look)[0]


def wrapped(text: str, width: int) -> str:
    """Return text in lines of this many characters; formulas stay whole."""
    return text if "$" in text else fill(text, width)


def tidy(ax: Any, grid: str | None = None) -> None:
    """Remove the frame at the top and right, and draw a faint grid along one axis."""
    ax.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        ax.grid(axis=grid, color=ink(ax), alpha=0.12, linewidth=0.8)
        ax.set_axisbelow(True)


def legend_above(
    ax: Any, handles: Sequence[Any], labels: Sequence[str] | None = None
) -> None:
    """Draw a legend above the axes, where it covers nothing, in as few rows as fit."""
    if not handles:
        return
    if ax.get_legend() is not None:  # it may make the axes narrower
        ax.get_legend().remove()
    ax.figure.figure.draw_without_rendering()
    width = ax.get_window_extent().width
    labels = [h.get_label() for h in handles] if labels is None else labels
    labels = [wrapped(label, 48) for label in labels]
    for columns in range(len(handles), 0, -1):
        legend = ax.legend(
            handles=handles,
            labels=labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            frameon=False,
            fontsize=9,
            borderaxespad=0.2,
            columnspacing=1.2,
            handletextpad=0.5,
        )
        if legend.get_window_extent().width <= width:
            break


# Offset in points and alignment of a label, in order of preference.
PLACES = (
    (6, 0, "left", "center"),
    (-6, 0, "right", "center"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    (5, 6, "left", "bottom"),
    (5, -6, "left", "top"),
    (-5, 6, "right", "bottom"),
    (-5, -6, "right", "top"),
    (0, 18, "center", "bottom"),
    (0, -18, "center", "top"),
)
# Cost of an area of a label outside of the axes, relative to one over a line.
OUTSIDE = 20


def place_labels(
    ax: Any, x: np.ndarray, y: np.ndarray, labels: Sequence[str]
) -> list[Any]:
    """Write each label where it covers the least of points, lines and other labels."""
    from matplotlib.transforms import Bbox

    ax.figure.figure.draw_without_rendering()  # fix the layout
    points = ax.transData.transform(np.column_stack([x, y]))  # (n, 2) in pixels
    taken = [Bbox([point - 4, point + 4]) for point in points]
    for line in ax.lines:
        path = line.get_transform().transform(line.get_path().interpolated(8).vertices)
        taken += [Bbox([point - 2, point + 2]) for point in path]
    frame = ax.get_window_extent()
    texts = []
    for i, label in enumerate(labels):
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
        text = ax.annotate(wrapped(label, 30), (x[i], y[i]), (0, 0), **look)
        others = taken[:i] + taken[i + 1 :]
        place = min(PLACES, key=lambda p: _cost(_move(text, p), others, frame))
        taken.append(_move(text, place))
        texts.append(text)
    return texts


def _move(text: Any, place: tuple[float, float, str, str]) -> Any:
    """Move a label, and return its box."""
    dx, dy, ha, va = place
    text.set(position=(dx, dy), ha=ha, va=va)
    return text.get_window_extent()


def _cost(box: Any, others: Sequence[Any], frame: Any) -> float:
    """Return the area of a label over other items, plus a cost of that outside.

    Outside of the axes are their numbers, between which a label is unreadable.
    """
    outside = box.width * box.height - _common_area(box, frame)
    return sum(_common_area(box, other) for other in others) + OUTSIDE * outside


def _common_area(a: Any, b: Any) -> float:
    common = a.intersection(a, b)
    return 0.0 if common is None else common.width * common.height
