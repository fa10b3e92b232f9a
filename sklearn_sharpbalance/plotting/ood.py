"""How well a score separates out-of-distribution samples from known ones."""

import numpy as np
from sklearn.metrics import roc_curve
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.metrics.ood import (
    SCORE_NAMES,
    check_score,
    ensemble_scores,
    ood_auroc,
)
from sklearn_sharpbalance.plotting._base import (
    LINES,
    Display,
    colour,
    draw_diagonal,
    legend_above,
    n_drawn,
    tidy,
)

N_BINS = 30


class OODDisplay(Display):
    """ROC curve or histogram of an out-of-distribution score.

    Use :meth:`from_estimator` to make one, or pass scores.

    Parameters
    ----------
    scores_in, scores_out : array-like of shape (n_samples,)
        Scores of known and of out-of-distribution samples; larger is more foreign.
    score_name : str, default="score"
        Name of the score, for the horizontal axis of the histogram.
    name : str, default=None
        Name of the predictor, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    line_ : matplotlib Line2D or None
        The ROC curve.
    diagonal_ : matplotlib Line2D or None
        That of a score without information; None if the axes have it already.
    bars_in_, bars_out_ : matplotlib StepPatch or None
        Histograms of the known and of the out-of-distribution samples.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import OODDisplay
    >>> OODDisplay([0.1, 0.2, 0.3, 0.4], [0.35, 0.5]).auroc
    0.875
    """

    def __init__(self, scores_in, scores_out, *, score_name="score", name=None):
        self.scores_in = scores_in
        self.scores_out = scores_out
        self.score_name = score_name
        self.name = name

    @property
    def auroc(self):
        """Area under the ROC curve."""
        return ood_auroc(self.scores_in, self.scores_out)

    @classmethod
    def from_estimator(
        cls, estimator, X_in, X_out, *, score="msp", name=None, **kwargs
    ):
        """Plot a score of a fitted classifier on known and on other samples.

        Parameters
        ----------
        estimator : fitted classifier, or a pipeline or search that ends in one
        X_in : array-like of shape (n_in, ...)
            Samples of the training distribution, not used in training.
        X_out : array-like of shape (n_out, ...)
            Out-of-distribution samples.
        score : str, default="msp"
            A key of :data:`~sklearn_sharpbalance.metrics.OOD_SCORES`.
        name : str, default=None
            Name for the legend; the estimator's class name and the score if None.
        **kwargs
            Passed to :meth:`plot`.
        """
        check_is_fitted(estimator)
        inside, outside = outputs_of(estimator, X_in), outputs_of(estimator, X_out)
        check_score(score, inside, type(estimator).__name__)
        shown = SCORE_NAMES[score]
        display = cls(
            ensemble_scores(score, inside),
            ensemble_scores(score, outside),
            score_name=shown,
            name=f"{type(estimator).__name__}, {shown}" if name is None else name,
        )
        return display.plot(**kwargs)

    def plot(self, ax=None, *, kind="roc"):
        """Draw the ROC curve or the histogram.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        kind : {"roc", "histogram"}, default="roc"
            The ROC curve, of which several fit on the same axes, or the distribution
            of the score among known and among other samples.
        """
        if kind not in ("roc", "histogram"):
            raise InvalidInputError(f"kind must be 'roc' or 'histogram', got {kind!r}.")
        auroc = self.auroc  # raises if scores are missing or not finite
        self.line_ = self.diagonal_ = self.bars_in_ = self.bars_out_ = None
        is_roc = kind == "roc"
        ax = self._start(ax, (4.4, 4.8) if is_roc else (5.0, 3.8), square=is_roc)
        if is_roc:
            self._draw_roc(ax, auroc)
        else:
            self._draw_histogram(ax)
        tidy(ax)
        legend_above(ax, *ax.get_legend_handles_labels())
        return self

    def _draw_roc(self, ax, auroc):
        n_before = n_drawn(ax, "roc")
        self.diagonal_ = draw_diagonal(ax)
        scores = np.concatenate([self.scores_in, self.scores_out])
        is_out = np.arange(len(scores)) >= len(self.scores_in)
        rejected, detected, _ = roc_curve(is_out, scores)
        text = f"AUROC {auroc:.3f}"
        (self.line_,) = ax.plot(
            rejected,
            detected,
            color=colour(n_before, ax),
            ls=LINES[n_before % len(LINES)],
            label=text if self.name is None else f"{self.name} ({text})",
            gid="roc",
        )
        ax.set(xlim=(-0.01, 1), ylim=(0, 1.01), aspect="equal")
        ax.set_xlabel("Fraction of known samples rejected")
        ax.set_ylabel("Fraction of other samples detected")

    def _draw_histogram(self, ax):
        scores = np.concatenate([self.scores_in, self.scores_out])
        edges = np.histogram_bin_edges(scores, N_BINS)
        known, other = (
            np.histogram(part, edges)[0] / len(part)
            for part in (self.scores_in, self.scores_out)
        )
        look = {"color": colour(0, ax), "fill": True, "alpha": 0.5}
        self.bars_in_ = ax.stairs(known, edges, label="known samples", **look)
        look = {"color": colour(3, ax), "linewidth": 1.6}
        self.bars_out_ = ax.stairs(other, edges, label="out of distribution", **look)
        ax.set_ylim(bottom=0)
        ax.set(xlabel=self.score_name, ylabel="Fraction of samples")
