"""Accuracy of several methods on corrupted samples."""

from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.corruption._base import as_severities
from sklearn_sharpbalance.corruption.sets import corrupted_sets
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_names,
    colour,
    ink,
    legend_above,
    marker,
    named,
    tidy,
    wrapped,
)

__all__ = ["CorruptionDisplay"]


class CorruptionDisplay(Display):
    """Accuracy of ensembles by severity of the corruption.

    Use :meth:`from_estimator` to make one, or pass accuracies that are known, such as
    those of :func:`~sklearn_sharpbalance.evaluation.corruption_accuracy`.

    Parameters
    ----------
    accuracy : array-like of shape (n_methods, n_severities)
        Accuracy of each ensemble, mean over the kinds of corruption.
    member_accuracy : array-like of shape (n_methods, n_severities), default=None
        Mean accuracy of its members.
    severities : sequence, default=None
        Names of the severities; 1, 2, ... if None. Clean images may be 0.
    names : sequence of str, default=None
        Names of the methods.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    lines_ : list of matplotlib Line2D
        With ``kind="lines"``: one line per method, and a dashed one for its members.
    bars_, member_bars_ : list of matplotlib BarContainer
        With ``kind="mean"``: the ensembles, and the parts of the members.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import CorruptionDisplay
    >>> display = CorruptionDisplay([[0.9, 0.7], [0.92, 0.8]], names=["SGD", "SAM"])
    >>> len(display.plot().lines_)
    2
    """

    def __init__(self, accuracy, *, member_accuracy=None, severities=None, names=None):
        self.accuracy = accuracy
        self.member_accuracy = member_accuracy
        self.severities = severities
        self.names = names

    @classmethod
    def from_estimator(
        cls,
        estimators,
        X,
        y,
        *,
        corruptions=None,
        severities=(1, 2, 3, 4, 5),
        random_state=0,
        **kwargs,
    ):
        """Corrupt images or a table, and plot the accuracy of fitted ensembles.

        Parameters
        ----------
        estimators : fitted ensemble, list of them, or dict of names to them
            Each may be a pipeline or a search that ends in one.
        X : array-like
            Clean samples: uint8 images of shape (n_samples, C, H, W) or
            (n_samples, H, W[, C]), or a table of shape (n_samples, n_features).
        y : array-like of shape (n_samples,)
        corruptions, severities, random_state
            See :func:`~sklearn_sharpbalance.evaluation.corruption_accuracy`.
        **kwargs
            Passed to :meth:`plot`.
        """
        ensembles = named(estimators, "Ensemble")
        severities = tuple(as_severities(severities))
        for estimator in ensembles.values():
            check_is_fitted(estimator)
        sets = corrupted_sets(
            X,
            y,
            corruptions=corruptions,
            severities=severities,
            random_state=random_state,
        )
        accuracy, member_accuracy = _measure(ensembles.values(), sets, severities)
        display = cls(
            accuracy,
            member_accuracy=member_accuracy,
            severities=severities,
            names=list(ensembles),
        )
        return display.plot(**kwargs)

    def plot(self, ax=None, *, kind="lines"):
        """Draw the accuracies.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        kind : {"lines", "mean"}, default="lines"
            Lines over the severities, dashed for members, or one bar per method, the
            mean over them. Its lower, hatched part is that of the members.
        """
        accuracy, member = self._check_arrays()
        names = check_names(self.names, len(accuracy), "Ensemble")
        severities = self.severities
        if severities is None:
            severities = range(1, accuracy.shape[1] + 1)
        if len(severities) != accuracy.shape[1]:
            raise InvalidInputError(
                f"There are accuracies at {accuracy.shape[1]} severities, got names of "
                f"{len(severities)}."
            )
        if kind not in ("lines", "mean"):
            raise InvalidInputError(f"kind must be 'lines' or 'mean', got {kind!r}.")
        # Bars need room for their numbers.
        width = max(5.0, 0.62 * len(names)) if kind == "mean" else 5.0
        ax = self._start(ax, (width, 3.8))
        self.lines_, self.bars_, self.member_bars_ = [], [], []
        ax.set_ylabel("Accuracy (%)")
        tidy(ax, grid="y")
        if kind == "lines":
            self._draw_lines(ax, accuracy, member, names)
            ax.set_xticks(range(len(severities)), labels=[str(s) for s in severities])
            ax.set_xlabel("Severity of the corruption")
        else:
            members_mean = None if member is None else member.mean(1)
            self._draw_bars(ax, accuracy.mean(1), members_mean, names)
            _name_ticks(ax, names)
        _draw_legend(ax, kind, member is not None)
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

    def _draw_lines(self, ax, accuracy, member, names):
        """Draw lines over the severities."""
        for k, name in enumerate(names):
            look = {"color": colour(k, ax), "marker": marker(k), "markersize": 6}
            self.lines_ += ax.plot(accuracy[k], label=name, **look)
            if member is not None:
                look |= {"markerfacecolor": ax.get_facecolor(), "linestyle": "--"}
                self.lines_ += ax.plot(member[k], linewidth=1, alpha=0.8, **look)

    def _draw_bars(self, ax, accuracy, member, names):
        """Draw one bar per method with its numbers, as in the paper's figure 7."""
        base = np.zeros_like(accuracy) if member is None else member
        for k in range(len(names)):
            look = {"color": colour(k, ax), "edgecolor": ink(ax), "linewidth": 0.7}
            if member is not None:
                lower = ax.bar([k], base[k], 0.6, hatch="///", alpha=0.55, **look)
                self.member_bars_.append(lower)
            upper = ax.bar([k], accuracy[k] - base[k], 0.6, bottom=base[k], **look)
            self.bars_.append(upper)
            if np.isnan(accuracy[k]):
                continue
            text = f"{accuracy[k]:.2f}"
            if member is not None:
                text += f"\n({accuracy[k] - member[k]:+.2f})"
            ax.annotate(
                text,
                (k, max(accuracy[k], base[k])),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
        shown = accuracy if member is None else np.concatenate([accuracy, member])
        _start_below_the_lowest(ax, shown)


def _measure(ensembles, sets, severities):
    """Return accuracies (K, S) of ensembles and of a member, mean over the kinds."""
    correct: list[list] = [[] for _ in severities]  # of each severity: (sets, K, 2)
    for data in sets:
        found = []
        for estimator in ensembles:
            outputs = outputs_of(estimator, data.X)
            codes = outputs.codes(data.y)
            whole = (outputs.proba.argmax(-1) == codes).mean()
            found.append((whole, (outputs.member_probas.argmax(-1) == codes).mean()))
        correct[severities.index(data.severity)].append(found)
    if not (correct and all(correct)):
        raise InvalidInputError(
            "There is nothing to measure: the corruptions make no corrupted set at the "
            f"severities {list(severities)}. Choose at least one of each."
        )
    means = np.stack([np.mean(found, axis=0) for found in correct], axis=1)  # (K, S, 2)
    return means[..., 0], means[..., 1]


def _start_below_the_lowest(ax, values):
    """Start the axis below the lowest value, and leave room for numbers at the top."""
    values = values[np.isfinite(values)]
    if values.size:
        low, high = values.min(), values.max()
        bottom = max(0.0, low - 0.5 * max(high - low, 1.0))
        ax.set_ylim(bottom, high + 0.25 * (high - bottom) or 1.0)


def _name_ticks(ax, names):
    """Write names on the horizontal axis, wrapped or turned if they would overlap."""
    names = [wrapped(name, 40) for name in names]
    lines = [fill(name, 16, break_long_words=False) for name in names]
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    for labels, look in ((names, {}), (lines, {}), (names, turned)):
        ax.set_xticks(range(len(names)), labels=labels, **look)
        ax.figure.figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        if all(b.x0 - a.x1 >= 4 for a, b in pairwise(boxes)):
            break


def _draw_legend(ax, kind, members):
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [] if kind == "mean" else list(ax.get_legend_handles_labels()[0])
    if members and kind == "lines":
        handles.append(
            Line2D([], [], color=ink(ax), alpha=0.7, ls="--", lw=1, label="Members")
        )
    elif members:
        look: dict[str, Any] = {"fc": to_rgba(ink(ax), 0.15), "ec": ink(ax), "lw": 0.7}
        handles.append(Patch(hatch="///", label="Members", **look))
    legend_above(ax, handles)
