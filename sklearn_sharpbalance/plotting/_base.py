"""Code that the displays share: axes, colours, matrices and labels."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.exceptions import InvalidInputError

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
NAME_WIDTH = 30  # characters of a line of a member's name
# Uniform in lightness, so that it is readable in grey and with colour blindness.
SEQUENTIAL = "cividis"


class Display:
    """Base of the displays: ``__init__`` takes arrays, ``plot`` draws a figure."""

    ax_: Any
    figure_: Any

    def _start(
        self,
        ax: Any,
        figsize: tuple[float, float] = (5.0, 3.8),
        square: bool = False,
    ) -> Any:
        """Return the axes to draw on: the given ones, or those of a new figure."""
        if ax is None:
            with needing("matplotlib", f"{type(self).__name__}.plot"):
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


def wrapped(text: str, width: int) -> str:
    """Return text in lines of this many characters; formulas stay whole."""
    return text if "$" in text else fill(text, width)


def tidy(ax: Any, grid: str | None = None) -> None:
    """Remove the frame at the top and right, and draw a faint grid along one axis."""
    ax.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        ax.grid(axis=grid, color=ink(ax), alpha=0.12, linewidth=0.8)
        ax.set_axisbelow(True)


def named(values: Any, kind: str) -> dict[str, Any]:
    """Return a single item, a sequence or a mapping as a mapping of names."""
    if isinstance(values, Mapping):
        return dict(values)
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    return {f"{kind} {i + 1}": value for i, value in enumerate(values)}


def check_member_names(names: Sequence[str] | None, n: int) -> list[str]:
    """Return one name for each member, numbered as in ``estimators_`` if None."""
    return check_names(names, n, "Member", first=0)


def check_names(
    names: Sequence[str] | None, n: int, kind: str, first: int = 1
) -> list[str]:
    """Return one name for each of ``n`` items, numbered if None."""
    if names is None:
        return [f"{kind} {i}" for i in range(first, first + n)]
    if len(names) != n:
        raise InvalidInputError(
            f"There must be one name for each of {n} {kind.lower()}s, got {len(names)}."
        )
    return [str(name) for name in names]


def matrix_size(names: Sequence[str]) -> tuple[float, float]:
    """Return the size in inches of a figure of a matrix with readable names."""
    scale = max(1.0, len(names) / 10)
    longest = min(max(map(len, names)), NAME_WIDTH)
    room = 0.08 * max(longest - 10, 0)  # for names longer than "Member 10"
    return 4.6 * scale + room, 3.8 * scale + 0.7 * room  # names below are slanted


def check_square(matrix: np.ndarray, name: str) -> None:
    """Raise if a matrix does not have a row and a column for each member."""
    if matrix.ndim != 2 or len(matrix) != matrix.shape[1] or not matrix.size:
        raise InvalidInputError(
            f"{name} must have shape (n_members, n_members), got {matrix.shape}."
        )


def draw_matrix(
    ax: Any,
    matrix: np.ndarray,
    names: Sequence[str],
    *,
    label: str,
    vmin: float,
    vmax: float,
    cmap: str,
    colorbar: bool,
) -> tuple[Any, Any, np.ndarray]:
    """Draw an (M, M) matrix with its values; return image, colour bar and texts."""
    M = len(matrix)
    names = [wrapped(name, NAME_WIDTH) for name in names]
    digits = 3 if np.abs(matrix).max() < 0.1 else 2
    drawn = ConfusionMatrixDisplay(matrix, display_labels=names).plot(
        ax=ax,
        cmap=cmap,
        values_format=f".{digits}f",
        colorbar=False,
        im_kw={"vmin": vmin, "vmax": vmax},
        text_kw={"fontsize": 10 if M <= 6 else 8},
    )
    ax.set(xlabel="", ylabel="")
    # scikit-learn chooses the colours of the texts without regard to vmin and vmax.
    for text, value in zip(drawn.text_.flat, matrix.flat):
        text.set_color(text_colour(drawn.im_, value))
    if max(len(name) for name in names) * M > 24:
        for tick_label in ax.get_xticklabels():
            tick_label.set(rotation=40, ha="right", rotation_mode="anchor")
    bar = None
    if colorbar:
        bar = ax.figure.colorbar(
            drawn.im_, ax=ax, label=label, fraction=0.046, pad=0.04
        )
    ax.figure.figure.draw_without_rendering()
    cell_width = ax.get_window_extent().width / M
    if drawn.text_[0, 0].get_window_extent().width > cell_width:
        for text in drawn.text_.flat:
            text.set_visible(False)
    return drawn.im_, bar, drawn.text_


def text_colour(image: Any, value: float) -> str:
    """Return black or white, whichever is readable on the colour of a value."""
    red, green, blue, _ = image.cmap(image.norm(value))
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    return "black" if is_light else "white"


def legend_above(
    ax: Any, handles: Sequence[Any], labels: Sequence[str] | None = None
) -> None:
    """Draw a legend above the axes, where it covers nothing, in as few rows as fit."""
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


def name_ticks(ax: Any, names: Sequence[str]) -> None:
    """Write names on the horizontal axis, wrapped or turned if they would overlap."""
    names = [wrapped(name, 40) for name in names]
    lines = [fill(name, 16, break_long_words=False) for name in names]
    turn = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    tries: list[tuple[Sequence[str], dict]] = [
        (names, {}),
        (lines, {}),
        (names, turn),
    ]
    for labels, look in tries:
        ax.set_xticks(range(len(names)), labels=labels, **look)
        ax.figure.figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        if all(b.x0 - a.x1 >= 4 for a, b in pairwise(boxes)):
            break


def thin_ticks(ax: Any) -> None:
    """Draw fewer numbers on the horizontal axis if they would touch."""
    from matplotlib.ticker import MaxNLocator

    locator = ax.xaxis.get_major_locator()
    if not isinstance(locator, MaxNLocator):
        return  # a logarithmic axis, or ticks that the caller has set
    for n_bins in (5, 4, 3, 2):
        ax.figure.figure.draw_without_rendering()
        low, high = ax.get_xlim()
        boxes = [
            label.get_window_extent()
            for label in ax.get_xticklabels()
            if low <= label.get_position()[0] <= high
        ]
        if all(b.x0 - a.x1 >= 4 for a, b in pairwise(boxes)):
            return
        locator.set_params(nbins=n_bins)


# Ratio that an axis spans, and the multiples of powers of ten that get numbers.
_LOG_TICKS = ((5, (2, 3, 4, 5, 6, 7, 8)), (50, (2, 3, 5)), (1000, (3,)))


def plain_log_axes(ax: Any) -> None:
    """Make both axes logarithmic, with numbers such as 0.5, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_data_interval()
        if low == high:  # around a single value, the axis spans a decade
            low, high = axis.get_view_interval()
        # As many numbers as fit beside each other.
        subs = next((subs for ratio, subs in _LOG_TICKS if high < ratio * low), ())
        axis.set_minor_locator(LogLocator(subs=subs) if subs else NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(StrMethodFormatter("{x:g}"))


def place_labels(
    ax: Any, x: np.ndarray, y: np.ndarray, labels: Sequence[str], fontsize: float = 9
) -> list[Any]:
    """Write each label where it covers the least of points, lines and other labels."""
    ax.figure.figure.draw_without_rendering()  # fix the layout
    points = ax.transData.transform(np.column_stack([x, y]))  # (n, 2) in pixels
    taken = [_around(point, 4) for point in points]
    for line in ax.lines:
        if len(line.get_xdata()):
            path = line.get_path().interpolated(8).vertices
            taken += [_around(p, 2) for p in line.get_transform().transform(path)]
    frame = ax.get_window_extent().extents
    texts = []
    for i, label in enumerate(labels):
        text = ax.annotate(
            wrapped(label, 30),
            (x[i], y[i]),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=fontsize,
        )
        others = taken[:i] + taken[i + 1 :]
        place = min(_PLACES, key=lambda p: _cost(_move(text, p), others, frame))
        taken.append(_move(text, place))
        texts.append(text)
    return texts


# Offset in points and alignment of a label, in order of preference.
_PLACES = (
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


def _around(point: np.ndarray, radius: float) -> np.ndarray:
    """Return a square around a point as left, bottom, right, top."""
    return np.concatenate([point - radius, point + radius])


def _move(text: Any, place: tuple[float, float, str, str]) -> np.ndarray:
    """Move a label, and return its box as left, bottom, right, top."""
    dx, dy, ha, va = place
    text.set(position=(dx, dy), ha=ha, va=va)
    return text.get_window_extent().extents


def _cost(box: np.ndarray, others: list[np.ndarray], frame: np.ndarray) -> float:
    """Return the area of a label over other items, plus a cost of that outside.

    Outside of the axes are their numbers, between which a label is unreadable.
    """
    outside = (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, frame)
    return sum(_shared(box, other) for other in others) + OUTSIDE * outside


def _shared(a: np.ndarray, b: np.ndarray) -> float:
    """Return the area that two boxes share."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return float(max(width, 0) * max(height, 0))
