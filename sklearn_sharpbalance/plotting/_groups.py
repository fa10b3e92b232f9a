"""Points of several groups, a marker each, and the lines fitted to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.plotting._base import LINES, colour, marker
from sklearn_sharpbalance.plotting.fit import TradeoffFit, fit_tradeoff

# Two points always lie on a line, which says nothing.
MIN_POINTS = 3


def draw_points(
    ax: Any,
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    color: Any,
    cmap: Any,
    vmin: float | None,
    vmax: float | None,
) -> dict[str, Any]:
    """A scatter per group; coloured by ``color`` on one scale, or by group."""
    scatters = {}
    values = None if color is None else np.asarray(color, dtype=float)
    for g, group in enumerate(dict.fromkeys(groups.tolist())):
        rows = groups == group
        look: dict[str, Any] = {"color": colour(g)}
        if values is not None:
            low = values.min() if vmin is None else vmin
            high = values.max() if vmax is None else vmax
            look = {"c": values[rows], "cmap": cmap, "vmin": low, "vmax": high}
            look |= {"edgecolors": "black", "linewidths": 0.6}
        scatters[group] = ax.scatter(
            x[rows], y[rows], s=52, marker=marker(g), zorder=3, **look
        )
    return scatters


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
            look = {"color": colour(g), "linestyle": LINES[g % len(LINES)]}
            (lines[group],) = ax.plot(at, fit(at), linewidth=1.4, zorder=2, **look)
    return lines, fits


def draw_legend(
    ax: Any,
    groups: Sequence[str],
    fits: Mapping[str, TradeoffFit | None],
    *,
    is_grouped: bool,
    is_filled: bool,
) -> None:
    """Marker, line and slope of each group; without groups, the slope alone."""
    from matplotlib.lines import Line2D

    handles = []
    for g, group in enumerate(groups):
        fit = fits.get(group)
        slope = "" if fit is None else rf"$\beta$ = {fit.slope:.2g}"
        name = f"{group} ({slope})" if slope else str(group)
        look: dict[str, Any] = {"color": colour(g), "linestyle": "none"}
        if slope:
            look["linestyle"] = LINES[g % len(LINES)]
        if is_grouped:
            look |= {"marker": marker(g), "label": name}
            look["markerfacecolor"] = colour(g) if is_filled else "white"
        elif slope:
            look["label"] = slope
        else:
            continue
        handles.append(Line2D([], [], **look))
    if handles:
        ax.legend(handles=handles, fontsize=9)
