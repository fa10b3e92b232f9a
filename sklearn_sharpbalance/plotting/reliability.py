"""Reliability diagram: accuracy against confidence."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    calibration_curve_bins,
    expected_calibration_error,
)
from sklearn_sharpbalance.plotting._base import (
    GREY,
    Display,
    colour,
    ink,
    legend_above,
    marker,
    tidy,
    wrapped,
)

__all__ = ["ReliabilityDisplay", "is_sparse"]

MAX_ROWS = 6  # of a legend
FEW = 10  # a bin with fewer samples is faint: its accuracy is mostly chance
FAINT = 0.2  # opacity


class ReliabilityDisplay(Display):
    """Accuracy against the confidence of the predicted class, in bins.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one.

    Parameters
    ----------
    confidence, accuracy : array-like of shape (n_bins,)
        Mean confidence and share of correct predictions in each bin.
    counts : array-like of shape (n_bins,)
        Number of samples in each bin. Empty bins are left out, those of fewer than 10
        samples are faint.
    edges : array-like of shape (n_bins + 1,)
        Edges of the bins.
    ece : float, default=None
        Expected calibration error, for the legend.
    name : str, default=None
        Name of the predictor, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    bars_, gaps_, shares_ : matplotlib BarContainer or None
        Accuracy, difference to the confidence, and share of samples.
    line_ : matplotlib Line2D or None
        Through the bins of at least 10 samples.
    sparse_ : matplotlib Line2D or None
        Markers of bins of fewer samples.
    diagonal_ : matplotlib Line2D or None

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import ReliabilityDisplay
    >>> proba = [[0.5, 0.5]] * 20 + [[0.75, 0.25]] * 20
    >>> ReliabilityDisplay.from_predictions([0] * 40, proba).ece
    0.375
    """

    def __init__(self, confidence, accuracy, counts, edges, *, ece=None, name=None):
        self.confidence = confidence
        self.accuracy = accuracy
        self.counts = counts
        self.edges = edges
        self.ece = ece
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        n_bins=15,
        strategy="uniform",
        name=None,
        ax=None,
        **kwargs,
    ):
        """Plot the reliability of a fitted classifier on ``X``.

        Parameters
        ----------
        estimator : fitted classifier with ``predict_proba`` and ``classes_``
        X : array-like of shape (n_samples, ...)
        y : array-like of shape (n_samples,)
        n_bins : int, default=15
        strategy : {"uniform", "quantile"}, default="uniform"
            Bins of equal width, or of equal numbers of samples.
        name : str, default=None
            The estimator's class name if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : ReliabilityDisplay
        """
        check_is_fitted(estimator)
        return cls.from_predictions(
            y,
            estimator.predict_proba(X),
            n_bins=n_bins,
            strategy=strategy,
            labels=estimator.classes_,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true,
        proba,
        *,
        n_bins=15,
        strategy="uniform",
        labels=None,
        name=None,
        ax=None,
        **kwargs,
    ):
        """Plot the reliability of known predictions.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Class codes, the columns of ``proba``; or any labels with ``labels``.
        proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        n_bins : int, default=15
        strategy : {"uniform", "quantile"}, default="uniform"
        labels : array-like of shape (n_classes,), default=None
            Label of each column.
        name : str, default=None
            Name for the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : ReliabilityDisplay
        """
        options = {"n_bins": n_bins, "strategy": strategy, "labels": labels}
        bins = calibration_curve_bins(y_true, proba, **options)
        ece = expected_calibration_error(y_true, proba, **options)
        display = cls(
            bins.confidence, bins.accuracy, bins.counts, bins.edges, ece=ece, name=name
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, kind="bars", color=None, ref_line=True, legend=True):
        """Draw the diagram.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        kind : {"bars", "line"}, default="bars"
            Bars show the gap of each bin and the share of samples in it. Lines allow
            several predictors on the same axes.
        color : color, default=None
            The next colour of the palette if None.
        ref_line : bool, default=True
            Whether to draw the diagonal, which is perfect calibration.
        legend : bool, default=True
            Whether to draw a legend.

        Returns
        -------
        display : ReliabilityDisplay
        """
        if kind not in ("bars", "line"):
            raise InvalidInputError(f"kind must be 'bars' or 'line', got {kind!r}.")
        ax = self._start(ax, (4.4, 4.8), square=True)
        n_before = sum(line.get_gid() == "reliability" for line in ax.lines)
        color = colour(n_before, ax) if color is None else color
        self.bars_ = self.gaps_ = self.shares_ = self.diagonal_ = None
        self.line_ = self.sparse_ = None
        drawn = any(line.get_gid() == "diagonal" for line in ax.lines)
        if ref_line and not drawn:
            (self.diagonal_,) = ax.plot(
                [0, 1], [0, 1], ls="--", lw=1, color=GREY, gid="diagonal", zorder=3
            )
        if kind == "bars":
            self._draw_bars(ax, color)
        else:
            self._draw_line(ax, color, n_before)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set(xlabel="Confidence", ylabel="Accuracy")
        tidy(ax)
        if legend:
            # Above the axes, since bars may cover every corner.
            handles, labels = ax.get_legend_handles_labels()
            handles = [_clearest(handle) for handle in handles]
            if len(handles) > MAX_ROWS:
                legend_above(ax, handles, labels)
            else:
                place = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
                ax.legend(handles, labels, **place, fontsize=9, frameon=False)
        return self

    def _label(self, fallback):
        ece = "" if self.ece is None else f"ECE {self.ece:.3f}"
        name = fallback if self.name is None else self.name
        return wrapped(f"{name} ({ece})" if ece else name, 48)

    def _draw_bars(self, ax, color):
        edges, counts = np.asarray(self.edges), np.asarray(self.counts)
        full = counts > 0
        left, width = edges[:-1][full], np.diff(edges)[full]
        accuracy = np.asarray(self.accuracy)[full]
        gap = np.asarray(self.confidence)[full] - accuracy
        place = {"x": left, "width": width, "align": "edge"}
        self.bars_ = ax.bar(
            height=accuracy,
            color=color,
            alpha=0.6,
            edgecolor="white",
            label=self._label("Accuracy"),
            **place,
        )
        self.gaps_ = ax.bar(
            height=gap,
            bottom=accuracy,
            facecolor="none",
            edgecolor="#D55E00",
            hatch="////",
            linewidth=0.8,
            label="Gap to confidence",
            **place,
        )
        self.shares_ = ax.bar(
            height=(counts / counts.sum())[full],
            facecolor="none",
            edgecolor=ink(ax),
            linewidth=1.0,
            label="Share of samples",
            **place,
        )
        for i in np.flatnonzero(is_sparse(counts)[full]):
            self.bars_[i].set_alpha(FAINT)
            self.gaps_[i].set_alpha(FAINT)

    def _draw_line(self, ax, color, n_before):
        counts = np.asarray(self.counts)
        sparse = is_sparse(counts)
        look = {
            "color": color,
            "marker": marker(n_before),
            "markersize": 5,
            "clip_on": False,
        }
        (self.line_,) = ax.plot(
            *self._points((counts > 0) & ~sparse),
            label=self._label("Accuracy"),
            gid="reliability",
            **look,
        )
        if sparse.any():
            (self.sparse_,) = ax.plot(
                *self._points(sparse), linestyle="none", alpha=FAINT, **look
            )

    def _points(self, chosen):
        """Return confidence and accuracy of some bins."""
        return np.asarray(self.confidence)[chosen], np.asarray(self.accuracy)[chosen]


def _clearest(handle):
    """Return the bar with the highest opacity of a container, else the handle."""
    patches = getattr(handle, "patches", None)
    if not patches:
        return handle
    return max(
        patches, key=lambda bar: 1.0 if bar.get_alpha() is None else bar.get_alpha()
    )


def is_sparse(counts) -> np.ndarray:
    """Return which bins have few samples, but some; none if no bin has many.

    Examples
    --------
    >>> is_sparse([0, 3, 40])
    array([False,  True, False])
    """
    counts = np.asarray(counts)
    return (counts > 0) & (counts < min(FEW, counts.max()))
