"""Draw the points of several groups, and the lines fitted to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.plotting._base import (
    GREY,
    LINES,
    colour,
    ink,
    legend_above,
    marker,
    wrapped,
)
from sklearn_sharpbalance.plotting.fit import TradeoffFit, fit_tradeoff

# A line through two points always fits.
MIN_POINTS = 3
# Length of an axis without intervals, as a share of its largest value.
MIN_SPAN = 0.2


def drawable(x: np.ndarray, y: np.ndarray, log: bool) -> np.ndarray:
    """Return which points can be drawn on the axes."""
    is_finite = np.isfinite(x) & np.isfinite(y)
    return is_finite & (x > 0) & (y > 0) if log else is_finite


def draw_points(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    *,
    color: np.ndarray | None,
    cmap: Any,
    vmin: float | None,
    vmax: float | None,
) -> dict[str, Any]:
    """Draw a scatter per group, coloured by ``color`` on one scale, or by group."""
    scatters = {}
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        look: dict[str, Any] = {"color": colour(g, ax)}
        if color is not None:
            look = {"c": color[rows], "edgecolors": ink(ax), "linewidths": 0.6}
            look |= _colour_scale(color, cmap, vmin, vmax)
        scatters[group] = ax.scatter(
            x[rows], y[rows], s=52, marker=marker(g), zorder=3, **look
        )
    return scatters


def _colour_scale(
    color: np.ndarray, cmap: Any, vmin: float | None, vmax: float | None
) -> dict[str, Any]:
    """Return a scale from the smallest to the largest finite value; others are white.

    ``vmin`` and ``vmax`` replace its ends.
    """
    from matplotlib import colormaps

    finite = color[np.isfinite(color)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    return {
        "cmap": colormaps.get_cmap(cmap).with_extremes(bad="white"),
        "vmin": low if vmin is None else vmin,
        "vmax": high if vmax is None else vmax,
        "plotnonfinite": True,
    }


def draw_fits(
    ax: Any, x: np.ndarray, y: np.ndarray, groups: np.ndarray, *, log: bool
) -> tuple[dict[str, Any], dict[str, TradeoffFit | None]]:
    """Draw the least-squares line of each group that has enough points."""
    lines, fits = {}, {}
    space = np.geomspace if log else np.linspace
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        fit = None
        if rows.sum() >= MIN_POINTS:
            fit = fit_tradeoff(x[rows], y[rows], log=log)
        fits[group] = fit
        if fit is not None:
            at = space(x[rows].min(), x[rows].max(), 50)
            look = {"color": colour(g, ax), "linestyle": LINES[g % len(LINES)]}
            (lines[group],) = ax.plot(at, fit(at), linewidth=1.4, zorder=2, **look)
    return lines, fits


def draw_intervals(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    *,
    x_error: np.ndarray | None,
    y_error: np.ndarray | None,
) -> Any:
    """Draw the intervals of points; ``x_error`` and ``y_error`` have shape (2, n)."""
    if x_error is None and y_error is None:
        return None
    look: dict[str, Any] = {"fmt": "none", "ecolor": GREY, "elinewidth": 1.0}
    return ax.errorbar(x, y, xerr=x_error, yerr=y_error, zorder=1.5, **look)


def widen_axis(ax: Any, axis: str, values: np.ndarray, *, log: bool) -> None:
    """Make an axis so long that small relative differences of values look small."""
    if not len(values) or not values.any():
        return
    low, high = values.min(), values.max()
    if log:
        factor = np.sqrt(max(1.0, (1 + MIN_SPAN) * low / high))
        ends = [low / factor, high * factor]
    else:
        missing = max(0.0, MIN_SPAN * np.abs(values).max() - (high - low))
        ends = [low - missing / 2, high + missing / 2]
    points = np.tile(ends, (2, 1)).T  # (2, 2)
    ax.update_datalim(points, updatex=axis == "x", updatey=axis == "y")
    ax.autoscale_view()


def draw_legend(
    ax: Any,
    groups: Mapping[str, Any],
    fits: Mapping[str, TradeoffFit | None],
    *,
    is_grouped: bool,
    is_filled: bool,
    notes: Sequence[Any] = (),
) -> None:
    """Draw a legend with marker, line and slope of each group.

    Without groups it has the slope only. ``groups`` are the scatters by name. A marker
    has the colour of its points, and is white if they differ in colour. ``notes`` are
    handles of further entries.
    """
    from matplotlib.lines import Line2D

    handles = []
    for g, group in enumerate(groups):
        fit = fits.get(group)
        slope = "" if fit is None else rf"$\beta$ = {fit.slope:.2g}"
        name = wrapped(str(group), 40) + (f" ({slope})" if slope else "")
        look: dict[str, Any] = {"color": colour(g, ax), "linestyle": "none"}
        if slope:
            look["linestyle"] = LINES[g % len(LINES)]
        if is_grouped:
            look |= {"marker": marker(g), "label": name}
            if not is_filled:
                look["markeredgecolor"] = ink(ax)
                look["markerfacecolor"] = _common_colour(groups[group])
        elif slope:
            look["label"] = slope
        else:
            continue
        handles.append(Line2D([], [], **look))
    handles += notes
    if handles and _covers_points(ax, ax.legend(handles=handles, fontsize=9)):
        legend_above(ax, handles)


def _common_colour(scatter: Any) -> Any:
    """Return the colour of all points of a scatter, white if they differ."""
    scatter.update_scalarmappable()
    colours = np.unique(scatter.get_facecolors(), axis=0)
    return colours[0] if len(colours) == 1 else "white"


def _covers_points(ax: Any, legend: Any) -> bool:
    """Return whether a legend covers a point, because no corner is free."""
    ax.figure.figure.draw_without_rendering()
    box = legend.get_window_extent()
    for scatter in ax.collections:
        for x, y in ax.transData.transform(scatter.get_offsets()):
            if box.contains(x, y):
                return True
    return False


def notes_on_missing(
    ax: Any, left_out: Sequence[str], color: np.ndarray | None
) -> list[Any]:
    """Return handles that list points off the axes and values off the colour scale."""
    from matplotlib.lines import Line2D

    notes = []
    off = [] if color is None else color[~np.isfinite(color)]
    if len(off):
        values = ", ".join(dict.fromkeys(f"{value:g}" for value in off))
        notes.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                markerfacecolor="white",
                markeredgecolor=ink(ax),
                label=f"off the colour scale: {values}",
            )
        )
    if len(left_out):
        label = f"off the axes: {', '.join(left_out)}"
        notes.append(Line2D([], [], linestyle="none", label=label))
    return notes
