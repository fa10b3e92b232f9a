"""Points of several groups, a marker each, and the lines fitted to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.plotting._base import (
    LINES,
    colour,
    ink,
    legend_above,
    marker,
    wrapped,
)
from sklearn_sharpbalance.plotting.fit import TradeoffFit, fit_tradeoff

# Two points always lie on a line, which says nothing.
MIN_POINTS = 3


def drawable(x: np.ndarray, y: np.ndarray, log: bool) -> np.ndarray:
    """Which points have a place on the axes."""
    shown = np.isfinite(x) & np.isfinite(y)
    return shown & (x > 0) & (y > 0) if log else shown


def draw_points(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    color: np.ndarray | None,
    cmap: Any,
    vmin: float | None,
    vmax: float | None,
) -> dict[str, Any]:
    """A scatter per group; coloured by ``color`` on one scale, or by group."""
    scatters = {}
    scale = {} if color is None else _scale(color, cmap, vmin, vmax)
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        look: dict[str, Any] = {"color": colour(g, ax)}
        if color is not None:
            look = {"c": color[rows], "edgecolors": ink(ax), "linewidths": 0.6, **scale}
        scatters[group] = ax.scatter(
            x[rows], y[rows], s=52, marker=marker(g), zorder=3, **look
        )
    return scatters


def _scale(
    color: np.ndarray, cmap: Any, vmin: float | None, vmax: float | None
) -> dict[str, Any]:
    """Colours from the least to the largest finite value; white for all others."""
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
    ax: Any, x: np.ndarray, y: np.ndarray, groups: np.ndarray, log: bool
) -> tuple[dict[str, Any], dict[str, TradeoffFit | None]]:
    """The least-squares line of each group that has enough points."""
    lines, fits = {}, {}
    space = np.geomspace if log else np.linspace
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        enough = rows.sum() >= MIN_POINTS
        fit = fit_tradeoff(x[rows], y[rows], log=log) if enough else None
        fits[group] = fit
        if fit is not None:
            at = space(x[rows].min(), x[rows].max(), 50)
            look = {"color": colour(g, ax), "linestyle": LINES[g % len(LINES)]}
            (lines[group],) = ax.plot(at, fit(at), linewidth=1.4, zorder=2, **look)
    return lines, fits


def draw_legend(
    ax: Any,
    groups: Sequence[str],
    fits: Mapping[str, TradeoffFit | None],
    *,
    is_grouped: bool,
    is_filled: bool,
    notes: Sequence[Any] = (),
) -> None:
    """Marker, line and slope of each group; without groups, the slope alone.

    ``notes`` are handles of what else there is to say.
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
            look["markerfacecolor"] = colour(g, ax) if is_filled else "white"
        elif slope:
            look["label"] = slope
        else:
            continue
        handles.append(Line2D([], [], **look))
    handles += notes
    if handles and _covers_points(ax, ax.legend(handles=handles, fontsize=9)):
        legend_above(ax, handles)


def _covers_points(ax: Any, legend: Any) -> bool:
    """Whether a legend lies over a point, for want of a free corner."""
    ax.figure.figure.draw_without_rendering()
    box = legend.get_window_extent()
    points = [ax.transData.transform(dots.get_offsets()) for dots in ax.collections]
    return any(box.contains(*point) for dots in points for point in dots)


def notes_on_missing(
    ax: Any, left_out: Sequence[str], color: np.ndarray | None
) -> list[Any]:
    """Handles that say what has no place on the axes or no colour on the scale."""
    from matplotlib.lines import Line2D

    notes = []
    off = [] if color is None else color[~np.isfinite(color)]
    if len(off):
        values = ", ".join(dict.fromkeys(f"{value:g}" for value in off))
        look: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": ink(ax)}
        look |= {"linestyle": "none", "label": f"off the colour scale: {values}"}
        notes.append(Line2D([], [], **look))
    if len(left_out):
        label = f"off the axes: {', '.join(left_out)}"
        notes.append(Line2D([], [], linestyle="none", label=label))
    return notes
