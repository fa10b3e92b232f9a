"""Loss or accuracy of every member by epoch."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import pandas as pd

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    GREY,
    LINES,
    NAME_WIDTH,
    PALETTE,
    Display,
    check_fitted,
    check_names,
    colour,
    ink,
    marker,
    tidy,
    wrapped,
)

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
    history : list of DataFrame
        For each member a row per epoch and a column per record. "epoch" is the
        horizontal axis (counted from 1 if it is missing), "phase" has the names of the
        phases.
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
    >>> from sklearn_sharpbalance.plotting import TrainingHistoryDisplay
    >>> epochs = [{"train_loss": 2.0}, {"train_loss": 1.0}]
    >>> display = TrainingHistoryDisplay.from_history([epochs, epochs])
    >>> display.history[0]["train_loss"].tolist()
    [2.0, 1.0]
    """

    def __init__(self, history, *, member_names=None):
        self.history = history
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, **kwargs):
        """Plot the training of a fitted ensemble, or of a fitted skorch net.

        Parameters
        ----------
        estimator : fitted ensemble or skorch net
            It may be the last step of a pipeline, or the best estimator of a search.
        **kwargs
            Passed to :meth:`from_history` and :meth:`plot`.
        """
        return cls.from_history(check_fitted(estimator, "history_").history_, **kwargs)

    @classmethod
    def from_history(cls, history, *, member_names=None, **kwargs):
        """Plot records of training.

        Parameters
        ----------
        history : list
            For each member a list of dictionaries (one per epoch, as skorch's
            ``History``), a dictionary of lists or a DataFrame. The records of a single
            member need no outer list.
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        **kwargs
            Passed to :meth:`plot`.
        """
        if _is_one_member(history):
            history = [history]
        frames = [_frame(member) for member in history]
        if not frames or any(frame.empty for frame in frames):
            raise InvalidInputError(
                "history has no epochs. Pass the records of at least one member."
            )
        return cls(frames, member_names=member_names).plot(**kwargs)

    def plot(self, ax=None, *, metric=None):
        """Draw one line per member and metric, and mark where phases begin.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        metric : str or sequence of str, default=None
            Records to draw, the first with full lines, the next dashed. None is
            "train_loss" and, if it was recorded, "valid_loss".
        """
        metrics = self._check_metrics(metric)
        names = check_names(self.member_names, len(self.history), "Member", first=0)
        ax = self._start(ax, (6.2, 3.8))
        self.lines_ = [
            [
                ax.plot(
                    _epochs(frame),
                    frame[key],
                    **_look(i, len(frame), ax),
                    linestyle=LINES[k % len(LINES)],
                    linewidth=1.6,
                )[0]
                for i, frame in enumerate(self.history)
            ]
            for k, key in enumerate(metrics)
        ]
        labels = [LABELS.get(key, key.replace("_", " ")) for key in metrics]
        ax.set_xlabel("Epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_ylabel(_common_label(labels))
        tidy(ax, grid="y")
        self.phase_lines_ = self._mark_phases(ax)
        self._draw_legend(ax, names, labels)
        return self

    def _check_metrics(self, metric):
        """Return the names of the records, or raise if one was not recorded."""
        if metric is None:
            metrics = ["train_loss"]
            if all("valid_loss" in frame for frame in self.history):
                metrics.append("valid_loss")
        else:
            metrics = [metric] if isinstance(metric, str) else list(metric)
        if not metrics:
            raise InvalidInputError("metric is empty. Pass the name of a record.")
        for key in metrics:
            if not all(key in frame for frame in self.history):
                known = sorted(set.intersection(*map(set, self.history)))
                raise InvalidInputError(
                    f"{key!r} was not recorded for every member. Choose one of {known}."
                )
        return metrics

    def _mark_phases(self, ax):
        """Draw a line and the name of the phase where the phase of a member changes."""
        starts: dict = {}
        for frame in self.history:
            if "phase" in frame:
                phase, epochs = frame["phase"].to_numpy(), _epochs(frame)
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
            )
        return lines

    def _draw_legend(self, ax, names, labels):
        """Draw the legend of members and, if there are several, of metrics."""
        from matplotlib.lines import Line2D

        handles = list(self.lines_[0])
        texts = [wrapped(name, NAME_WIDTH) for name in names]
        if len(labels) > 1:
            for k, label in enumerate(labels):
                handles.append(Line2D([], [], color=ink(ax), ls=LINES[k % len(LINES)]))
                texts.append(label)
        if len(handles) > 1:  # beside the axes; 16 rows fit the figure
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            n_columns = ceil(len(handles) / 16)
            ax.legend(handles, texts, fontsize=9, ncols=n_columns, **place)


def _look(i, n_epochs, ax):
    """Return colour and marker of a member's line.

    Markers are needed when colours repeat, and for a single epoch.
    """
    if i < len(PALETTE) and n_epochs > 1:
        return {"color": colour(i, ax)}
    marks = {"marker": marker(i), "markersize": 4, "markevery": max(1, n_epochs // 10)}
    return {"color": colour(i, ax), **marks}


def _epochs(frame):
    """Return the numbers of the epochs."""
    if "epoch" in frame:
        return frame["epoch"].to_numpy()
    return np.arange(1, len(frame) + 1)


def _common_label(labels):
    """Return one label for all, such as "Loss" for training and validation loss."""
    if len(labels) == 1:
        return labels[0]
    last = {label.rpartition(" ")[2] for label in labels}
    return last.pop().capitalize() if len(last) == 1 else ", ".join(labels)


def _is_one_member(history):
    """Return whether these are the records of one member, not of several."""
    if isinstance(history, Mapping | pd.DataFrame):
        return True
    first = next(iter(history), None)
    if not isinstance(first, Mapping):
        return False
    return all(np.ndim(v) == 0 for k, v in first.items() if k != "batches")


def _frame(member):
    """Return the records of a member as a DataFrame, with NaN for missing epochs."""
    columns = member if isinstance(member, Mapping | pd.DataFrame) else list(member)
    frame = pd.DataFrame(columns).drop(columns="batches", errors="ignore")
    return frame.fillna({"phase": ""}) if "phase" in frame else frame
