"""What the displays share: axes, colours, matrices and labels that keep apart."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.exceptions import InvalidInputError

BLACK = "#000000"
# Okabe and Ito's palette: told apart with any colour vision, dark enough to print.
# Yellow comes last but one, because it is faint on white.
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
# Uniform in lightness, so that it survives a grey print and colour-blindness.
SEQUENTIAL = "cividis"


class Display:
    """Arrays in ``__init__``, a figure by ``plot``; the axes end up in ``ax_``."""

    ax_: Any
    figure_: Any

    def _start(
        self,
        ax: Any,
        figsize: tuple[float, float] = (5.0, 3.8),
        square: bool = False,
    ) -> Any:
        """Axes to draw on: the given ones, or those of a new figure."""
        if ax is None:
            with needing("matplotlib", f"{type(self).__name__}.plot"):
                import matplotlib.pyplot as plt
            # Only this layout leaves room for the labels of axes of fixed aspect.
            layout = "compressed" if square else "constrained"
            _, ax = plt.subplots(figsize=figsize, layout=layout)
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def ink(ax: Any) -> str:
    """Colour of what is written on axes: black, or white on a dark ground."""
    return ax.xaxis.label.get_color()


def colour(i: int, ax: Any) -> str:
    """Colour of the i-th thing on axes."""
    found = PALETTE[i % len(PALETTE)]
    return ink(ax) if found == BLACK else found


def marker(i: int) -> str:
    """Marker of the i-th thing, another one each time that colours come round."""
    return MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]


def wrapped(text: str, width: int) -> str:
    """Text in lines of so many characters; formulas stay whole."""
    return text if "$" in text else fill(text, width)


def tidy(ax: Any, grid: str | None = None) -> None:
    """No frame where there is no axis; a faint grid along one axis, if any."""
    ax.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        ax.grid(axis=grid, color=ink(ax), alpha=0.12, linewidth=0.8)
        ax.set_axisbelow(True)


def named(values: Any, kind: str) -> dict[str, Any]:
    """A single thing, a sequence or a mapping, as a mapping of names."""
    if isinstance(values, Mapping):
        return dict(values)
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    return {f"{kind} {i + 1}": value for i, value in enumerate(values)}


def check_member_names(names: Sequence[str] | None, n: int) -> list[str]:
    """One name for each member; numbered as in ``estimators_`` if there are none."""
    return check_names(names, n, "Member", first=0)


def check_names(
    names: Sequence[str] | None, n: int, kind: str, first: int = 1
) -> list[str]:
    """One name for each of ``n`` things; numbered if there are none."""
    if names is None:
        return [f"{kind} {i}" for i in range(first, first + n)]
    if len(names) != n:
        raise InvalidInputError(
            f"There must be one name for each of {n} {kind.lower()}s, got {len(names)}."
        )
    return [str(name) for name in names]


def matrix_size(names: Sequence[str]) -> tuple[float, float]:
    """Inches of a figure in which a matrix of members and their names can be read."""
    scale = max(1.0, len(names) / 10)
    longest = min(max(map(len, names)), NAME_WIDTH)
    room = 0.08 * max(longest - 10, 0)  # beyond that of "Member 10", in their lines
    return 4.6 * scale + room, 3.8 * scale + 0.7 * room  # names below are slanted


def check_square(matrix: np.ndarray, name: str) -> None:
    """Refuse what has no row and column for each member."""
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
    """An (M, M) matrix with its values in the cells: image, colour bar, texts."""
    image = ax.imshow(matrix, vmin=vmin, vmax=vmax, cmap=cmap)
    M = len(matrix)
    texts = np.empty((M, M), dtype=object)
    size = 10 if M <= 6 else 8
    digits = 3 if np.abs(matrix).max() < 0.1 else 2
    for i, j in np.ndindex(M, M):
        red, green, blue, _ = image.cmap(image.norm(matrix[i, j]))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        texts[i, j] = ax.text(
            j,
            i,
            f"{matrix[i, j]:.{digits}f}",
            ha="center",
            va="center",
            fontsize=size,
            color="black" if light else "white",
        )
    names = [wrapped(name, NAME_WIDTH) for name in names]
    slanted = max(len(name) for name in names) * M > 24
    turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    ax.set_xticks(range(M), labels=names, **turn)
    ax.set_yticks(range(M), labels=names)
    bar = None
    if colorbar:
        bar = ax.figure.colorbar(image, ax=ax, label=label, fraction=0.046, pad=0.04)
    ax.figure.figure.draw_without_rendering()
    if texts[0, 0].get_window_extent().width > ax.get_window_extent().width / M:
        for text in texts.flat:  # on small axes of the caller's
            text.set_visible(False)
    return image, bar, texts


def legend_above(
    ax: Any, handles: Sequence[Any], labels: Sequence[str] | None = None
) -> None:
    """A legend over the axes, where it covers nothing, in as few rows as fit."""
    if ax.get_legend() is not None:  # it would take away from the width
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
    """Names along the horizontal axis; in lines or turned where they would overlap."""
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
    """Fewer numbers along the horizontal axis, where long ones would touch."""
    from matplotlib.ticker import MaxNLocator

    locator = ax.xaxis.get_major_locator()
    if not isinstance(locator, MaxNLocator):
        return  # logarithmic, or as the caller has chosen
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


# Multiples of powers of ten that get numbers, by the ratio that the axis spans.
_LOG_TICKS = ((5, (2, 3, 4, 5, 6, 7, 8)), (50, (2, 3, 5)), (1000, (3,)))


def plain_log_axes(ax: Any) -> None:
    """Logarithmic axes with numbers such as 0.5 in place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_data_interval()
        if low == high:  # around a single value the axis spans a decade
            low, high = axis.get_view_interval()
        # As many numbers as have room beside each other.
        subs = next((subs for ratio, subs in _LOG_TICKS if high < ratio * low), ())
        axis.set_minor_locator(LogLocator(subs=subs) if subs else NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(StrMethodFormatter("{x:g}"))


def place_labels(
    ax: Any, x: np.ndarray, y: np.ndarray, labels: Sequence[str], fontsize: float = 9
) -> list[Any]:
    """Write each label where it covers the least of points, lines and other labels."""
    ax.figure.figure.draw_without_rendering()  # the layout is settled from here on
    points = ax.transData.transform(np.column_stack([x, y]))  # (n, 2) in pixels
    taken = [_around(point, 4) for point in points]
    for line in (line for line in ax.lines if len(line.get_xdata())):
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


# Offset in points and alignment of a label, the preferred places first.
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


# What a part of a label outside of the axes costs, compared with one over a line.
OUTSIDE = 20


def _around(point: np.ndarray, radius: float) -> np.ndarray:
    return np.concatenate([point - radius, point + radius])


def _move(text: Any, place: tuple[float, float, str, str]) -> np.ndarray:
    dx, dy, ha, va = place
    text.set(position=(dx, dy), ha=ha, va=va)
    return text.get_window_extent().extents  # left, bottom, right, top


def _cost(box: np.ndarray, others: list[np.ndarray], frame: np.ndarray) -> float:
    """Area that a label shares with other things or has outside of the axes.

    Outside are numbers of the axes, beside which a label cannot be read at all.
    """
    outside = (box[2] - box[0]) * (box[3] - box[1]) - _shared(box, frame)
    return sum(_shared(box, other) for other in others) + OUTSIDE * outside


def _shared(a: np.ndarray, b: np.ndarray) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return float(max(width, 0) * max(height, 0))
