"""Accuracy of several methods on corrupted samples."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.aggregation.rules import combine_probas
from sklearn_sharpbalance.corruption._base import as_severities
from sklearn_sharpbalance.corruption.sets import corrupted_sets
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_names,
    colour,
    ink,
    legend_above,
    marker,
    name_ticks,
    named,
    tidy,
)

__all__ = ["CorruptionDisplay"]


class CorruptionDisplay(Display):
    """Accuracy of ensembles by severity of the corruption.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one.

    Parameters
    ----------
    accuracy : array-like of shape (n_methods, n_severities)
        Accuracy of each ensemble, mean over the kinds of corruption.
    member_accuracy : array-like of shape (n_methods, n_severities), default=None
        Mean accuracy of its members.
    severities : sequence, default=None
        Names of the severities; 1, 2, ... if None. Clean pictures may be 0.
    names : sequence of str, default=None
        Names of the methods.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    lines_ : list of matplotlib Line2D
        With ``kind="lines"``: one line per method, and a dashed one for its members.
    bars_ : list of matplotlib BarContainer
        With bars: the ensembles; ``member_bars_`` are the parts of the members.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
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
        ax=None,
        **kwargs,
    ):
        """Corrupt pictures or a table, and plot the accuracy of fitted ensembles.

        Parameters
        ----------
        estimators : fitted ensemble, list of them, or dict of names to them
            Each may be a pipeline or a search that ends in one.
        X : array-like
            Clean samples: uint8 pictures of shape (n_samples, C, H, W) or
            (n_samples, H, W[, C]), or a table of shape (n_samples, n_features).
        y : array-like of shape (n_samples,)
        corruptions : str, iterable, mapping or None, default=None
            Kinds or groups of :mod:`sklearn_sharpbalance.corruption`, for a table those
            of ``TABULAR_CORRUPTIONS``; None or "all" is all of them, without
            "missing_nan" for a table. A mapping of (kind, severity) to (samples,
            labels), such as :class:`~sklearn_sharpbalance.corruption.CorruptionFiles`,
            is used as it is, and ``X`` is not corrupted.
        severities : int or sequence of int, default=(1, 2, 3, 4, 5)
            A mapping must have all severities for each of its kinds.
        random_state : int, default=0
            Controls the random parts of the corruptions.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : CorruptionDisplay
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
        return display.plot(ax, **kwargs)

    @classmethod
    def from_predictions(
        cls,
        y_true,
        member_probas,
        *,
        severities=None,
        classes=None,
        ax=None,
        **kwargs,
    ):
        """Plot ensembles whose members' probabilities on corrupted data are known.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Class codes, the columns of the probabilities; or any with ``classes``.
        member_probas : dict of str to array-like
            For each method the probabilities of its members, of shape (n_severities,
            n_members, n_samples, n_classes), or with a first axis of kinds.
        severities : sequence, default=None
        classes : array-like of shape (n_classes,), default=None
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : CorruptionDisplay
        """
        methods = named(member_probas, "Ensemble")
        if not methods:
            raise InvalidInputError(
                "member_probas has no ensembles. Pass at least one."
            )
        parts = [
            _accuracies_of(y_true, probas, classes, name)
            for name, probas in methods.items()
        ]
        counts = [len(ensemble) for ensemble, _ in parts]
        if len(set(counts)) > 1:
            raise InvalidInputError(
                "All methods must be measured at the same severities, but their "
                f"numbers are {counts}."
            )
        ensemble, member = (np.stack(part) for part in zip(*parts))
        display = cls(
            ensemble, member_accuracy=member, severities=severities, names=list(methods)
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, kind="lines", members=True, legend=True):
        """Draw the accuracies.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        kind : {"lines", "bars", "mean"}, default="lines"
            Lines over the severities; groups of bars, one group per severity; or one
            bar per method, the mean over the severities.
        members : bool, default=True
            Draw the members' accuracy, if known: as dashed lines, or as the hatched
            lower part of a bar, below the gain of the ensemble.
        legend : bool, default=True
            Whether to draw a legend.

        Returns
        -------
        display : CorruptionDisplay
        """
        accuracy, member = self._check_arrays(members)
        names = check_names(self.names, len(accuracy), "Ensemble")
        n_severities = accuracy.shape[1]
        severities = self.severities
        if severities is None:
            severities = range(1, n_severities + 1)
        if len(severities) != n_severities:
            raise InvalidInputError(
                f"There are accuracies at {n_severities} severities, got names of "
                f"{len(severities)}."
            )
        functions = {"lines": _draw_lines, "bars": _draw_groups, "mean": _draw_means}
        if kind not in functions:
            raise InvalidInputError(
                f"kind must be 'lines', 'bars' or 'mean', got {kind!r}."
            )
        width = 5.0
        if kind == "bars":
            width = 7.0
        elif kind == "mean":
            width = max(width, 0.62 * len(names))  # room for the numbers
        ax = self._start(ax, (width, 3.8))
        percent = 100 * accuracy
        member_percent = None if member is None else 100 * member
        self.lines_, self.bars_, self.member_bars_ = functions[kind](
            ax, percent, member_percent, names
        )
        ax.set_ylabel("Accuracy (%)")
        if kind != "mean":
            ax.set_xticks(range(len(severities)), labels=[str(s) for s in severities])
            ax.set_xlabel("Severity of the corruption")
        tidy(ax, grid="y")
        if legend:
            _draw_legend(ax, kind, member is not None)
        return self

    def _check_arrays(self, members):
        """Return the accuracies as arrays, or raise if their shapes differ."""
        accuracy = np.asarray(self.accuracy, dtype=float)
        member = None
        if members and self.member_accuracy is not None:
            member = np.asarray(self.member_accuracy, dtype=float)
        shapes = {v.shape for v in (accuracy, member) if v is not None}
        if accuracy.ndim != 2 or len(shapes) > 1:
            raise InvalidInputError(
                "accuracy and member_accuracy must have shape (n_methods, "
                f"n_severities), got {' and '.join(map(str, sorted(shapes)))}."
            )
        return accuracy, member


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


def _accuracies_of(y_true, member_probas, classes, name):
    """Return accuracies (S,) of an ensemble and of a member.

    ``member_probas`` has shape ([kinds,] S, M, N, C).
    """
    probas = np.asarray(member_probas)
    if probas.ndim not in (4, 5):
        raise InvalidInputError(
            f"The probabilities of {name!r} must have shape (n_severities, n_members, "
            "n_samples, n_classes), or a further axis of corruptions in front, got "
            f"{probas.shape}."
        )
    codes = encode_labels(
        y_true, n_classes=probas.shape[-1], n_samples=probas.shape[-2], labels=classes
    )
    sets = probas.reshape(-1, *probas.shape[-3:])  # (kinds * S, M, N, C)
    whole = np.stack([combine_probas(members) for members in sets])
    ensemble = (whole.argmax(-1) == codes).mean(-1)  # (kinds * S,)
    member = (sets.argmax(-1) == codes).mean((-1, -2))
    by_severity = (-1, probas.shape[-4])  # (kinds, S)
    return ensemble.reshape(by_severity).mean(0), member.reshape(by_severity).mean(0)


def _draw_lines(ax, accuracy, member, names):
    """Draw lines over the severities; return lines, bars and the members' bars."""
    lines = []
    for k, name in enumerate(names):
        look = {"color": colour(k, ax), "marker": marker(k), "markersize": 6}
        lines += ax.plot(accuracy[k], label=name, **look)
        if member is not None:
            look |= {"markerfacecolor": ax.get_facecolor(), "linestyle": "--"}
            lines += ax.plot(member[k], linewidth=1, alpha=0.8, **look)
    return lines, [], []


def _draw_bars(ax, at, width, *, accuracy, member, k, name):
    """Draw the bars of method ``k``; their lower, hatched parts are the members'.

    Returns the bars of the ensemble, and those of the members or None.
    """
    look = {"color": colour(k, ax), "edgecolor": ink(ax), "linewidth": 0.7}
    if member is None:
        return ax.bar(at, accuracy, width, label=name, **look), None
    lower = ax.bar(at, member, width, hatch="///", alpha=0.55, **look)
    gain = ax.bar(at, accuracy - member, width, bottom=member, label=name, **look)
    return gain, lower


def _draw_groups(ax, accuracy, member, names):
    """Draw a group of bars per severity; return lines, bars and the members' bars."""
    K, S = accuracy.shape
    width = 0.8 / K
    bars, member_bars = [], []
    for k, name in enumerate(names):
        upper, lower = _draw_bars(
            ax,
            np.arange(S) + (k - (K - 1) / 2) * width,
            width,
            accuracy=accuracy[k],
            member=None if member is None else member[k],
            k=k,
            name=name,
        )
        bars.append(upper)
        if lower is not None:
            member_bars.append(lower)
    _start_below_the_lowest(ax, accuracy, member)
    return [], bars, member_bars


def _draw_means(ax, accuracy, member, names):
    """Draw one bar per method with its numbers, as in the paper's figure 7."""
    mean = accuracy.mean(1)
    member_mean = None if member is None else member.mean(1)
    bars, member_bars = [], []
    for k, name in enumerate(names):
        upper, lower = _draw_bars(
            ax,
            [k],
            0.6,
            accuracy=mean[k : k + 1],
            member=None if member_mean is None else member_mean[k : k + 1],
            k=k,
            name=name,
        )
        bars.append(upper)
        if lower is not None:
            member_bars.append(lower)
        if np.isnan(mean[k]):
            continue
        text, top = f"{mean[k]:.2f}", max(mean[k], 0.0)
        if member_mean is not None:
            text += f"\n({mean[k] - member_mean[k]:+.2f})"
            top = max(mean[k], member_mean[k])
        ax.annotate(
            text,
            (k, top),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    _start_below_the_lowest(ax, mean, member_mean, headroom=0.25)
    name_ticks(ax, names)
    return [], bars, member_bars


def _start_below_the_lowest(ax, accuracy, member, headroom=0.08):
    """Start the axis below the lowest value, and leave room for numbers at the top."""
    values = accuracy if member is None else np.stack([accuracy, member])
    values = values[np.isfinite(values)]
    if values.size:
        low, high = values.min(), values.max()
        bottom = max(0.0, low - 0.5 * max(high - low, 1.0))
        ax.set_ylim(bottom, high + headroom * (high - bottom) or 1.0)


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
    if handles:
        legend_above(ax, handles)
