"""Reliability diagram: accuracy against confidence."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.metrics import (
    calibration_curve_bins,
    expected_calibration_error,
)
from sklearn_sharpbalance.plotting._base import (
    Display,
    colour,
    draw_diagonal,
    ink,
    legend_above,
    tidy,
)

FEW = 10  # a bin with fewer samples is faint: its accuracy is mostly chance
FAINT = 0.2  # opacity


class ReliabilityDisplay(Display):
    """Accuracy against the confidence of the predicted class, in bins.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one.

    Parameters
    ----------
    confidence, accuracy : array-like of shape (n_bins,)
        Mean confidence and fraction of correct predictions in each bin.
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
    bars_, gaps_, fractions_ : matplotlib BarContainer
        Accuracy, difference to the confidence, and fraction of the samples.
    diagonal_ : matplotlib Line2D or None
        Perfect calibration; None if the axes have it already.

    Examples
    --------
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
    def from_estimator(cls, estimator, X, y, *, name=None, **kwargs):
        """Plot the reliability of a fitted classifier on ``X``.

        Parameters
        ----------
        estimator : fitted classifier with ``predict_proba`` and ``classes_``
        X : array-like of shape (n_samples, ...)
        y : array-like of shape (n_samples,)
        name : str, default=None
            Name for the legend; the estimator's class name if None.
        **kwargs
            Passed to :meth:`from_predictions` and :meth:`plot`.
        """
        check_is_fitted(estimator)
        return cls.from_predictions(
            y,
            estimator.predict_proba(X),
            labels=estimator.classes_,
            name=type(estimator).__name__ if name is None else name,
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
            Bins of equal width, or of equal numbers of samples.
        labels : array-like of shape (n_classes,), default=None
            Label of each column.
        name : str, default=None
            Name for the legend.
        **kwargs
            Passed to :meth:`plot`.
        """
        options = {"n_bins": n_bins, "strategy": strategy, "labels": labels}
        bins = calibration_curve_bins(y_true, proba, **options)
        ece = expected_calibration_error(y_true, proba, **options)
        display = cls(
            bins.confidence, bins.accuracy, bins.counts, bins.edges, ece=ece, name=name
        )
        return display.plot(**kwargs)

    def plot(self, ax=None):
        """Draw the accuracy, the gap and the fraction of samples of each bin.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        """
        ax = self._start(ax, (4.4, 4.8), square=True)
        self.diagonal_ = draw_diagonal(ax)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set(xlabel="Confidence", ylabel="Accuracy")
        tidy(ax)
        self._draw_bars(ax)
        return self

    def _label(self):
        name = "Accuracy" if self.name is None else self.name
        return name if self.ece is None else f"{name} (ECE {self.ece:.3f})"

    def _draw_bars(self, ax):
        """Draw the bars of each bin that has samples."""
        edges, counts = np.asarray(self.edges), np.asarray(self.counts)
        full = counts > 0
        accuracy = np.asarray(self.accuracy)[full]
        confidence = np.asarray(self.confidence)[full]
        place = {"x": edges[:-1][full], "width": np.diff(edges)[full], "align": "edge"}
        self.bars_ = ax.bar(
            height=accuracy,
            color=colour(0, ax),
            alpha=0.6,
            edgecolor="white",
            label=self._label(),
            **place,
        )
        self.gaps_ = ax.bar(
            height=confidence - accuracy,
            bottom=accuracy,
            facecolor="none",
            edgecolor="#D55E00",
            hatch="////",
            linewidth=0.8,
            label="Gap to confidence",
            **place,
        )
        self.fractions_ = ax.bar(
            height=(counts / counts.sum())[full],
            facecolor="none",
            edgecolor=ink(ax),
            linewidth=1.0,
            label="Fraction of samples",
            **place,
        )
        sparse = _is_sparse(counts)[full]
        for i in np.flatnonzero(sparse):
            self.bars_[i].set_alpha(FAINT)
            self.gaps_[i].set_alpha(FAINT)
        drawn = (self.bars_, self.gaps_, self.fractions_)
        clear = int(sparse.argmin())  # a bin that is not faint
        legend_above(
            ax, [bars[clear] for bars in drawn], [b.get_label() for b in drawn]
        )


def _is_sparse(counts: np.ndarray) -> np.ndarray:
    """Return which bins have few samples, but some; none if no bin has many."""
    return (counts > 0) & (counts < min(FEW, counts.max()))
