"""Loss or accuracy of every member by epoch."""

from collections.abc import Mapping
from math import ceil

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    GREY,
    LINES,
    NAME_WIDTH,
    PALETTE,
    Display,
    check_member_names,
    colour,
    ink,
    marker,
    tidy,
    wrapped,
)
from sklearn_sharpbalance.plotting._ensembles import check_ensemble, found_estimator

__all__ = ["TrainingHistoryDisplay"]

LABELS = {
    "train_loss": "Training loss",
    "valid_loss": "Validation loss",
    "train_acc": "Training accuracy",
    "valid_acc": "Validation accuracy",
    "lr": "Learning rate",
    "dur": "Seconds per epoch",
}


class TrainingHistoryDisplay(Display):
    """Records of the members' training, against the epoch.

    Use :meth:`from_estimator` or :meth:`from_history` to make one.

    Parameters
    ----------
    history : list of dict of str to array-like
        For each member, the values of each record. "epoch" is the horizontal axis
        (counted from 1 if it is missing), "phase" has the names of the phases.
    member_names : sequence of str, default=None
        Name of each member; numbered if None.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    lines_ : list of list of matplotlib Line2D
        One list per metric, with one line per member.
    phase_lines_ : list of matplotlib Line2D
        Lines at which a new phase begins.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import TrainingHistoryDisplay
    >>> epochs = [{"train_loss": 2.0}, {"train_loss": 1.0}]
    >>> TrainingHistoryDisplay.from_history([epochs, epochs]).history[0]["train_loss"]
    array([2., 1.])
    """

    def __init__(self, history, *, member_names=None):
        self.history = history
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, *, member_names=None, ax=None, **kwargs):
        """Plot the training of a fitted ensemble, or of a fitted skorch net.

        Parameters
        ----------
        estimator : fitted ensemble or skorch net
            It may be the last step of a pipeline, or the best estimator of a search.
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : TrainingHistoryDisplay
        """
        estimator = found_estimator(estimator)
        if not hasattr(estimator, "history_"):
            check_ensemble(estimator, "history_")
        history = estimator.history_
        return cls.from_history(history, member_names=member_names, ax=ax, **kwargs)

    @classmethod
    def from_history(cls, history, *, member_names=None, ax=None, **kwargs):
        """Plot records of training.

        Parameters
        ----------
        history : list
            For each member a list of dictionaries (one per epoch, as skorch's
            ``History``) or a dictionary of lists. The records of a single member need
            no outer list.
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : TrainingHistoryDisplay
        """
        display = cls(_columns_per_member(history), member_names=member_names)
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, metric=None, logy=False, phases=True, legend=True):
        """Draw one line per member and metric.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        metric : str or sequence of str, default=None
            Records to draw, the first with full lines, the next dashed. None is
            "train_loss" and, if it was recorded, "valid_loss".
        logy : bool, default=False
            Whether the vertical axis is logarithmic.
        phases : bool, default=True
            Whether to mark the beginning of each phase.
        legend : bool, default=True
            Whether to draw a legend.

        Returns
        -------
        display : TrainingHistoryDisplay
        """
        metrics = self._check_metrics(metric)
        names = check_member_names(self.member_names, len(self.history))
        ax = self._start(ax, (6.2, 3.8))
        self.lines_ = [
            [
                ax.plot(
                    _epochs(columns),
                    columns[key],
                    **_look(i, len(columns[key]), ax),
                    linestyle=LINES[k % len(LINES)],
                    linewidth=1.6,
                )[0]
                for i, columns in enumerate(self.history)
            ]
            for k, key in enumerate(metrics)
        ]
        if logy:
            ax.set_yscale("log")
        labels = [LABELS.get(key, key.replace("_", " ")) for key in metrics]
        ax.set_xlabel("Epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_ylabel(_common_label(labels))
        tidy(ax, grid="y")
        self.phase_lines_ = self._mark_phases(ax) if phases else []
        if legend:
            self._draw_legend(ax, names, labels)
        return self

    def _check_metrics(self, metric):
        """Return the names of the records, or raise if one was not recorded."""
        if metric is None:
            metrics = ["train_loss"]
            if all("valid_loss" in columns for columns in self.history):
                metrics.append("valid_loss")
        else:
            metrics = [metric] if isinstance(metric, str) else list(metric)
        if not metrics:
            raise InvalidInputError("metric is empty. Pass the name of a record.")
        for key in metrics:
            if not all(key in columns for columns in self.history):
                known = sorted(set.intersection(*(set(c) for c in self.history)))
                raise InvalidInputError(
                    f"{key!r} was not recorded for every member. Choose one of {known}."
                )
        return metrics

    def _mark_phases(self, ax):
        """Draw a line and the name of the phase where the phase of a member changes."""
        starts: dict = {}
        for columns in self.history:
            if "phase" in columns:
                phase, epochs = np.asarray(columns["phase"]), _epochs(columns)
                new = np.append(True, phase[1:] != phase[:-1])
                starts.update(zip(epochs[new].tolist(), phase[new].tolist()))
        lines = []
        for number, (epoch, name) in enumerate(sorted(starts.items())):
            at = max(epoch - 0.5, ax.get_xlim()[0])  # between two epochs
            if number > 0:
                lines.append(ax.axvline(at, color=GREY, ls=":", lw=1.2, zorder=0))
            ax.annotate(
                name,
                (at, 1.0),
                xycoords=ax.get_xaxis_transform(),
                xytext=(2, 1),
                textcoords="offset points",
                fontsize=9,
                color=ink(ax),
                alpha=0.7,
                annotation_clip=False,
            )
        return lines

    def _draw_legend(self, ax, names, labels):
        """Draw the legend of members and, if there are several, of metrics."""
        from matplotlib.lines import Line2D

        names = [wrapped(name, NAME_WIDTH) for name in names]
        members = list(zip(self.lines_[0], names))
        styles = [
            (Line2D([], [], color=ink(ax), ls=LINES[k % len(LINES)]), label)
            for k, label in enumerate(labels)
        ]
        entries = members if len(labels) == 1 else members + styles
        if len(entries) > 1:
            handles, texts = zip(*entries)
            # Beside the axes, since inside it would cover some lines.
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            n_columns = ceil(len(entries) / 16)  # 16 rows fit the figure
            ax.legend(handles, texts, fontsize=9, ncols=n_columns, **place)


def _look(i, n_epochs, ax):
    """Return colour and marker of a member's line.

    Markers are needed when colours repeat, and for a single epoch.
    """
    if i < len(PALETTE) and n_epochs > 1:
        return {"color": colour(i, ax)}
    marks = {"marker": marker(i), "markersize": 4, "markevery": max(1, n_epochs // 10)}
    return {"color": colour(i, ax), **marks}


def _epochs(columns):
    """Return the numbers of the epochs."""
    n = len(next(iter(columns.values())))
    return np.asarray(columns.get("epoch", np.arange(1, n + 1)))


def _common_label(labels):
    """Return one label for all, such as "Loss" for training and validation loss."""
    if len(labels) == 1:
        return labels[0]
    last = {label.rpartition(" ")[2] for label in labels}
    return last.pop().capitalize() if len(last) == 1 else ", ".join(labels)


def _columns_per_member(history):
    """Return the values of each record, for each member."""
    if isinstance(history, Mapping) or _is_one_member(history):
        history = [history]
    members = [_columns(member) for member in history]
    if not members or any(len(columns) == 0 for columns in members):
        raise InvalidInputError(
            "history has no epochs. Pass the records of at least one member."
        )
    return members


def _is_one_member(history):
    """Return whether a list has the epochs of one member, not several members."""
    first = next(iter(history), None)
    if not isinstance(first, Mapping):
        return False
    return all(np.ndim(v) == 0 for k, v in first.items() if k != "batches")


def _columns(member):
    """Return the values of each record as an array, with NaN for missing epochs."""
    if not isinstance(member, Mapping):
        epochs = list(member)
        keys = dict.fromkeys(k for epoch in epochs for k in epoch if k != "batches")
        missing = {"phase": ""}
        member = {
            key: [epoch.get(key, missing.get(key, np.nan)) for epoch in epochs]
            for key in keys
        }
    return {key: np.asarray(values) for key, values in member.items()}
