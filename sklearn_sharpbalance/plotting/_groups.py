"""The points of groups of ensembles, and the lines fitted to them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.plotting._base import (
    LINES,
    SEQUENTIAL,
    colour,
    ink,
    legend_above,
    marker,
    wrapped,
)

# A line through two points always fits.
MIN_POINTS = 3
# Length of an axis as a fraction of its largest value, at least.
MIN_SPAN = 0.2


def draw_points(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    *,
    color: np.ndarray | None,
) -> dict[str, Any]:
    """Draw a scatter per group, coloured by ``color`` on one scale, or by group."""
    scatters = {}
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        look: dict[str, Any] = {"color": colour(g, ax)}
        if color is not None:
            look = {"c": color[rows], "edgecolors": ink(ax), "linewidths": 0.6}
            look |= _colour_scale(color)
        scatters[group] = ax.scatter(
            x[rows], y[rows], s=52, marker=marker(g), zorder=3, **look
        )
    return scatters


def _colour_scale(color: np.ndarray) -> dict[str, Any]:
    """Return a scale of the finite values, on which the others are white."""
    from matplotlib import colormaps

    finite = color[np.isfinite(color)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    white = colormaps[SEQUENTIAL].with_extremes(bad="white")
    return {"cmap": white, "vmin": low, "vmax": high, "plotnonfinite": True}


def draw_fits(
    ax: Any, x: np.ndarray, y: np.ndarray, groups: np.ndarray
) -> tuple[dict[str, Any], dict[str, float]]:
    """Draw the least-squares line of each group that has enough points.

    Return the lines and their slopes.
    """
    lines, slopes = {}, {}
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        own, values = x[groups == group], y[groups == group]
        if len(own) < MIN_POINTS or np.ptp(own) == 0:
            continue
        slope, intercept = np.polyfit(own, values, 1)
        at = np.array([own.min(), own.max()])
        look = {"color": colour(g, ax), "linestyle": LINES[g % len(LINES)]}
        line = ax.plot(at, intercept + slope * at, linewidth=1.4, zorder=2, **look)
        lines[group], slopes[group] = line[0], float(slope)
    return lines, slopes


def widen_axis(ax: Any, axis: str, values: np.ndarray) -> None:
    """Make an axis so long that small relative differences of values look small."""
    if not len(values) or not values.any():
        return
    low, high = values.min(), values.max()
    missing = max(0.0, MIN_SPAN * np.abs(values).max() - (high - low))
    ends = [low - missing / 2, high + missing / 2]
    points = np.tile(ends, (2, 1)).T  # (2, 2)
    ax.update_datalim(points, updatex=axis == "x", updatey=axis == "y")
    ax.autoscale_view()


def draw_legend(
    ax: Any,
    groups: Iterable[str],
    slopes: Mapping[str, float],
    *,
    is_grouped: bool,
    is_filled: bool,
    notes: Sequence[str],
) -> None:
    """Draw a legend with marker, line and slope of each group, and notes.

    Without groups it has the slope only. Markers are white if points differ in colour.
    """
    from matplotlib.lines import Line2D

    handles = []
    for g, group in enumerate(groups):
        look: dict[str, Any] = {"color": colour(g, ax), "linestyle": "none"}
        label = wrapped(str(group), 40) if is_grouped else ""
        if group in slopes:
            slope = rf"$\beta$ = {slopes[group]:.2g}"
            look["linestyle"] = LINES[g % len(LINES)]
            label = f"{label} ({slope})" if label else slope
        if is_grouped:
            look["marker"] = marker(g)
        if not is_filled:
            look["markeredgecolor"] = ink(ax)
            look["markerfacecolor"] = "white"
        if label:
            handles.append(Line2D([], [], label=label, **look))
    handles += [Line2D([], [], linestyle="none", label=note) for note in notes]
    legend_above(ax, handles)


def notes_on_missing(left_out: Sequence[str], color: np.ndarray | None) -> list[str]:
    """Return texts that list points off the axes and values off the colour scale."""
    notes = []
    off = [] if color is None else color[~np.isfinite(color)]
    if len(off):
        values = ", ".join(dict.fromkeys(f"{value:g}" for value in off))
        notes.append(f"white, off the colour scale: {values}")
    if len(left_out):
        notes.append(f"off the axes: {', '.join(left_out)}")
    return notes
