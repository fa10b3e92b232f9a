"""Sharpness against diversity: one point per ensemble, a line per group."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    LINES,
    SEQUENTIAL,
    Display,
    colour,
    ink,
    legend_above,
    marker,
    place_labels,
    tidy,
    wrapped,
)

# A line through two points always fits.
MIN_POINTS = 3
# Length of an axis as a fraction of its largest value, at least.
MIN_SPAN = 0.2


class TradeoffDisplay(Display):
    """Trade-off between the sharpness and the diversity of members.

    The values are those of :func:`~sklearn_sharpbalance.evaluation.evaluate` with
    ``sharpness=True``, or of :func:`~sklearn_sharpbalance.evaluation.tradeoff_curve`.
    An axis is at least a fifth as long as its largest value, so that small
    differences, which may be chance, look small.

    Parameters
    ----------
    sharpness, diversity : array-like of shape (n_ensembles,)
        Mean sharpness of each ensemble's members, and their diversity.
    color : array-like of shape (n_ensembles,), default=None
        Values that colour the points, such as improvement or accuracy.
    labels : sequence of str, default=None
        Text beside each point, such as its rho.
    groups : sequence of str, default=None
        Group of each ensemble, such as its method; each has a marker and a line.
    sharpness_name, diversity_name : str, default="Sharpness", "Diversity"
        Labels of the axes.
    color_name : str, default=None
        Label of the colour bar.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    scatters_ : dict of str to matplotlib PathCollection
    lines_ : dict of str to matplotlib Line2D
    slopes_ : dict of str to float
        Slope of the line of each group, the paper's beta.
    colorbar_ : matplotlib Colorbar or None
    texts_ : list of matplotlib Annotation

    References
    ----------
    .. [1] H. Lu et al. (2024). Sharpness-diversity tradeoff: improving flat ensembles
       with SharpBalance. NeurIPS. Figures 1c, 3, 4 and 5.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import TradeoffDisplay
    >>> display = TradeoffDisplay([1.0, 2.0, 3.0], [0.4, 0.5, 0.6]).plot()
    >>> round(display.slopes_["all"], 6)
    0.1
    """

    def __init__(
        self,
        sharpness,
        diversity,
        *,
        color=None,
        labels=None,
        groups=None,
        sharpness_name="Sharpness",
        diversity_name="Diversity",
        color_name=None,
    ):
        self.sharpness = sharpness
        self.diversity = diversity
        self.color = color
        self.labels = labels
        self.groups = groups
        self.sharpness_name = sharpness_name
        self.diversity_name = diversity_name
        self.color_name = color_name

    def plot(self, ax=None):
        """Draw the points, their labels and lines fitted to three or more of a group.

        An ensemble whose sharpness or diversity is not finite is left out and listed
        in the legend. One whose colour is not finite, such as an improvement of -inf,
        is white.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        """
        x = np.asarray(self.sharpness, dtype=float)
        y = np.asarray(self.diversity, dtype=float)
        groups = np.asarray(["all"] * len(x) if self.groups is None else self.groups)
        color = None if self.color is None else np.asarray(self.color, dtype=float)
        names = self.labels
        if names is None:
            names = [f"Ensemble {i + 1}" for i in range(len(x))]
        labels = np.array([str(name) for name in names], dtype=object)
        _check_lengths(x, diversity=y, groups=groups, color=color, labels=labels)
        shown = np.isfinite(x) & np.isfinite(y)
        color = None if color is None else color[shown]
        notes = _notes_on_missing(labels[~shown], color)
        x, y, groups, labels = x[shown], y[shown], groups[shown], labels[shown]
        ax = self._start(ax, (5.4, 4.0))
        self.scatters_ = _draw_points(ax, x, y, groups, color=color)
        _widen_axis(ax, "x", x)
        _widen_axis(ax, "y", y)
        ax.locator_params(axis="x", nbins=4)
        self.lines_, self.slopes_ = _draw_fits(ax, x, y, groups)
        ax.set(xlabel=self.sharpness_name, ylabel=self.diversity_name)
        tidy(ax)
        ax.margins(0.12)
        self.colorbar_ = None
        if self.scatters_ and color is not None:
            mappable = next(iter(self.scatters_.values()))
            self.colorbar_ = ax.figure.colorbar(mappable, ax=ax, label=self.color_name)
        _draw_legend(
            ax,
            self.scatters_,
            self.slopes_,
            is_grouped=self.groups is not None,
            is_filled=color is None,
            notes=notes,
        )
        self.texts_ = []
        if self.labels is not None:
            self.texts_ = place_labels(ax, x, y, labels)
        return self


def _check_lengths(sharpness, **others):
    """Raise if an array does not have one value for each ensemble."""
    for name, values in others.items():
        if values is not None and values.shape != sharpness.shape:
            raise InvalidInputError(
                f"{name} must hold {len(sharpness)} values, as sharpness does, got "
                f"shape {values.shape}."
            )


def _draw_points(
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


def _draw_fits(
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


def _widen_axis(ax: Any, axis: str, values: np.ndarray) -> None:
    """Make an axis so long that small relative differences of values look small."""
    if not len(values) or not values.any():
        return
    low, high = values.min(), values.max()
    missing = max(0.0, MIN_SPAN * np.abs(values).max() - (high - low))
    ends = [low - missing / 2, high + missing / 2]
    points = np.tile(ends, (2, 1)).T  # (2, 2)
    ax.update_datalim(points, updatex=axis == "x", updatey=axis == "y")
    ax.autoscale_view()


def _draw_legend(
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


def _notes_on_missing(left_out: Sequence[str], color: np.ndarray | None) -> list[str]:
    """Return texts that list points off the axes and values off the colour scale."""
    notes = []
    off = [] if color is None else color[~np.isfinite(color)]
    if len(off):
        values = ", ".join(dict.fromkeys(f"{value:g}" for value in off))
        notes.append(f"white, off the colour scale: {values}")
    if len(left_out):
        notes.append(f"off the axes: {', '.join(left_out)}")
    return notes
