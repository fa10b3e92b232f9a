"""Loss or accuracy of every member by epoch."""

from math import ceil

import numpy as np
import pandas as pd

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    GREY,
    LINES,
    PALETTE,
    Display,
    check_fitted,
    colour,
    ink,
    marker,
    tidy,
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

    Parameters
    ----------
    history : list
        For each member a list of dictionaries, one per epoch, as skorch's ``History``;
        or a DataFrame. "epoch" is the horizontal axis (counted from 1 if it is
        missing), "phase" has the names of the phases.

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
    >>> display = TrainingHistoryDisplay([epochs, epochs]).plot()
    >>> display.lines_[0][1].get_ydata().tolist()
    [2.0, 1.0]
    """

    def __init__(self, history):
        self.history = history

    @classmethod
    def from_estimator(cls, estimator, **kwargs):
        """Plot the training of a fitted ensemble, or of a fitted skorch net.

        Parameters
        ----------
        estimator : fitted ensemble or skorch net
            It may be the last step of a pipeline, or the best estimator of a search.
        **kwargs
            Passed to :meth:`plot`.
        """
        estimator = check_fitted(estimator, "history_")
        is_net = hasattr(estimator, "module_")
        history = [estimator.history_] if is_net else estimator.history_
        return cls(history).plot(**kwargs)

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
        frames = [_frame(member) for member in self.history]
        if not frames or any(frame.empty for frame in frames):
            raise InvalidInputError(
                "history has no epochs. Pass the records of at least one member."
            )
        metrics = _check_metrics(metric, frames)
        ax = self._start(ax, (6.2, 3.8))
        self.lines_ = [
            [
                ax.plot(
                    frame["epoch"],
                    frame[key],
                    **_look(i, len(frame), ax),
                    linestyle=LINES[k % len(LINES)],
                    linewidth=1.6,
                )[0]
                for i, frame in enumerate(frames)
            ]
            for k, key in enumerate(metrics)
        ]
        labels = [LABELS.get(key, key.replace("_", " ")) for key in metrics]
        ax.set(xlabel="Epoch", ylabel=_common_label(labels))
        ax.xaxis.get_major_locator().set_params(integer=True)
        tidy(ax, grid="y")
        self.phase_lines_ = _mark_phases(ax, frames)
        self._draw_legend(ax, labels)
        return self

    def _draw_legend(self, ax, labels):
        """Draw the legend of members and, if there are several, of metrics."""
        from matplotlib.lines import Line2D

        handles = list(self.lines_[0])
        texts = [f"Member {i}" for i in range(len(handles))]
        if len(labels) > 1:
            for k, label in enumerate(labels):
                handles.append(Line2D([], [], color=ink(ax), ls=LINES[k % len(LINES)]))
                texts.append(label)
        if len(handles) > 1:  # beside the axes; 16 rows fit the figure
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            n_columns = ceil(len(handles) / 16)
            ax.legend(handles, texts, fontsize=9, ncols=n_columns, **place)


def _frame(member):
    """Return the records of a member, with NaN for missing epochs."""
    frame = member if isinstance(member, pd.DataFrame) else pd.DataFrame(list(member))
    if "epoch" not in frame:
        frame = frame.assign(epoch=np.arange(1, len(frame) + 1))
    return frame.fillna({"phase": ""})


def _check_metrics(metric, frames):
    """Return the names of the records, or raise if one was not recorded."""
    if metric is None:
        metric = ["train_loss"]
        if all("valid_loss" in frame for frame in frames):
            metric.append("valid_loss")
    metrics = [metric] if isinstance(metric, str) else list(metric)
    if not metrics:
        raise InvalidInputError("metric is empty. Pass the name of a record.")
    for key in metrics:
        if not all(key in frame for frame in frames):
            known = sorted(set.intersection(*map(set, frames)) - {"batches"})
            raise InvalidInputError(
                f"{key!r} was not recorded for every member. Choose one of {known}."
            )
    return metrics


def _mark_phases(ax, frames):
    """Draw a line and the name of the phase where the phase of a member changes."""
    starts: dict = {}
    for frame in frames:
        if "phase" in frame:
            phase, epochs = frame["phase"].to_numpy(), frame["epoch"].to_numpy()
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


def _look(i, n_epochs, ax):
    """Return colour and marker of a member's line.

    Markers are needed when colours repeat, and for a single epoch.
    """
    if i < len(PALETTE) and n_epochs > 1:
        return {"color": colour(i, ax)}
    marks = {"marker": marker(i), "markersize": 4, "markevery": max(1, n_epochs // 10)}
    return {"color": colour(i, ax), **marks}


def _common_label(labels):
    """Return one label for all, such as "Loss" for training and validation loss."""
    if len(labels) == 1:
        return labels[0]
    last = {label.rpartition(" ")[2] for label in labels}
    return last.pop().capitalize() if len(last) == 1 else ", ".join(labels)
