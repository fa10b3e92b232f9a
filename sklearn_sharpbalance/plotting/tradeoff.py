"""Sharpness against diversity: one point per ensemble."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_names,
    place_labels,
    tidy,
)
from sklearn_sharpbalance.plotting._groups import (
    draw_fits,
    draw_legend,
    draw_points,
    notes_on_missing,
    widen_axis,
)

__all__ = ["TradeoffDisplay"]


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
        labels = np.asarray(check_names(self.labels, len(x), "Ensemble"), dtype=object)
        _check_lengths(sharpness=x, diversity=y, groups=groups, color=color)
        shown = np.isfinite(x) & np.isfinite(y)
        color = None if color is None else color[shown]
        notes = notes_on_missing(labels[~shown], color)
        x, y, groups, labels = x[shown], y[shown], groups[shown], labels[shown]
        ax = self._start(ax, (5.4, 4.0))
        self.scatters_ = draw_points(ax, x, y, groups, color=color)
        widen_axis(ax, "x", x)
        widen_axis(ax, "y", y)
        ax.locator_params(axis="x", nbins=4)
        self.lines_, self.slopes_ = draw_fits(ax, x, y, groups)
        ax.set(xlabel=self.sharpness_name, ylabel=self.diversity_name)
        tidy(ax)
        ax.margins(0.12)
        self.colorbar_ = None
        if self.scatters_ and color is not None:
            mappable = next(iter(self.scatters_.values()))
            self.colorbar_ = ax.figure.colorbar(mappable, ax=ax, label=self.color_name)
        draw_legend(
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


def _check_lengths(*, sharpness, **others):
    """Raise if an array does not have one value for each ensemble."""
    for name, values in others.items():
        if values is not None and values.shape != sharpness.shape:
            raise InvalidInputError(
                f"{name} must hold {len(sharpness)} values, as sharpness does, got "
                f"shape {values.shape}."
            )
