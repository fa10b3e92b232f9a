"""Accuracy of several methods on corrupted samples."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_names,
    colour,
    ink,
    legend_above,
    marker,
    tidy,
)

__all__ = ["CorruptionDisplay"]


class CorruptionDisplay(Display):
    """Accuracy of ensembles by severity of the corruption.

    The accuracies are those of
    :func:`~sklearn_sharpbalance.evaluation.corruption_accuracy`, averaged over the
    kinds.

    Parameters
    ----------
    accuracy : array-like of shape (n_methods, n_severities)
        Accuracy of each ensemble, mean over the kinds of corruption.
    member_accuracy : array-like of shape (n_methods, n_severities), default=None
        Mean accuracy of its members.
    names : sequence of str, default=None
        Names of the methods.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    lines_ : list of matplotlib Line2D
        One line per method, and a dashed one for its members.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import CorruptionDisplay
    >>> display = CorruptionDisplay([[0.9, 0.7], [0.92, 0.8]], names=["SGD", "SAM"])
    >>> len(display.plot().lines_)
    2
    """

    def __init__(self, accuracy, *, member_accuracy=None, names=None):
        self.accuracy = accuracy
        self.member_accuracy = member_accuracy
        self.names = names

    def plot(self, ax=None):
        """Draw lines over the severities, dashed for members.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        """
        accuracy, member = self._check_arrays()
        names = check_names(self.names, len(accuracy), "Ensemble")
        ax = self._start(ax)
        self.lines_ = []
        for k, name in enumerate(names):
            look = {"color": colour(k, ax), "marker": marker(k), "markersize": 6}
            self.lines_ += ax.plot(accuracy[k], label=name, **look)
            if member is not None:
                look |= {"markerfacecolor": ax.get_facecolor(), "linestyle": "--"}
                self.lines_ += ax.plot(member[k], linewidth=1, alpha=0.8, **look)
        places = range(accuracy.shape[1])
        ax.set_xticks(places, labels=[str(i + 1) for i in places])
        ax.set(xlabel="Severity of the corruption", ylabel="Accuracy (%)")
        tidy(ax, grid="y")
        _draw_legend(ax, member is not None)
        return self

    def _check_arrays(self):
        """Return the accuracies in percent, or raise if their shapes differ."""
        accuracy = 100 * np.asarray(self.accuracy, dtype=float)
        member = None
        if self.member_accuracy is not None:
            member = 100 * np.asarray(self.member_accuracy, dtype=float)
        shapes = {v.shape for v in (accuracy, member) if v is not None}
        if accuracy.ndim != 2 or len(shapes) > 1:
            raise InvalidInputError(
                "accuracy and member_accuracy must have shape (n_methods, "
                f"n_severities), got {' and '.join(map(str, sorted(shapes)))}."
            )
        return accuracy, member


def _draw_legend(ax, has_members):
    from matplotlib.lines import Line2D

    handles = list(ax.get_legend_handles_labels()[0])
    if has_members:
        handles.append(Line2D([], [], color=ink(ax), ls="--", lw=1, label="Members"))
    legend_above(ax, handles)
