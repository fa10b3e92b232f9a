"""Dots with intervals on horizontal lines, one for each method."""

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.plotting._base import tidy

__all__ = [
    "Dot",
    "axes",
    "draw_dots",
    "height",
    "method_axis",
    "row_dots",
]

WIDTH = 5.4  # inches: text of 10 points is still read on the width of a phone


def axes(inches: float, n_columns: int = 1) -> tuple[Any, Any]:
    """A figure of its own: neither pyplot's state nor its backend is touched."""
    with needing("matplotlib", "A figure of a report"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(WIDTH, inches), layout="constrained")
    return figure, figure.subplots(1, n_columns, sharey=n_columns > 1)


def height(names: Sequence[str], least: float = 0.42) -> float:
    """Inches of a figure with a line for each name, and room for what it is named."""
    lines = max(_wrapped(name).count("\n") + 1 for name in names)
    return 1.3 + len(names) * max(least, 0.08 + 0.17 * lines)


class Dot(NamedTuple):
    """A value and its interval, at the height of a line."""

    at: float
    value: float
    low: float
    high: float


def draw_dots(
    ax: Any, dots: Sequence[Dot], color: str, shape: str = "o", filled: bool = True
) -> Any:
    """Values with their intervals, on horizontal lines."""
    x, y = np.array([d.value for d in dots]), np.array([d.at for d in dots])
    for dot in dots:
        if not np.isnan(dot.low):
            ax.plot([dot.low, dot.high], [dot.at] * 2, color=color, lw=1.6, alpha=0.7)
    face = color if filled else "white"
    look = {"facecolors": face, "edgecolors": color, "linewidths": 1.4, "zorder": 3}
    return ax.scatter(x, y, s=48, marker=shape, **look)


def row_dots(
    report: Any, metric: str, part: str, detail: str, shift: float = 0.0
) -> Iterator[Dot]:
    """One number of each method that has it."""
    for i, method in enumerate(report.methods):
        if report.has(method, metric, part, detail):
            row = report.row(method, metric, part, detail)
            yield Dot(i + shift, row["mean"], row["low"], row["high"])


def method_axis(ax: Any, names: Sequence[str]) -> None:
    """Names of the lines, the first at the top."""
    ax.set_yticks(range(len(names)), labels=[_wrapped(name) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    tidy(ax, grid="x")


def _wrapped(name: str) -> str:
    """Short lines; words as long as the name of a class stay whole."""
    if "$" in name:
        return name
    short = fill(name, 18, break_long_words=False)
    return short if max(map(len, short.split("\n"))) <= 30 else fill(name, 30)
