"""How well a score separates foreign samples from known ones."""

import numpy as np
from sklearn.metrics import roc_curve
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.metrics.ood import (
    SCORE_NAMES,
    check_score_names,
    ensemble_scores,
    ood_auroc,
)
from sklearn_sharpbalance.plotting._base import (
    GREY,
    LINES,
    Display,
    colour,
    legend_above,
    tidy,
)

__all__ = ["OODDisplay"]

KINDS = ("roc", "histogram")


class OODDisplay(Display):
    """ROC curve or histogram of an out-of-distribution score.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one.

    Parameters
    ----------
    scores_in, scores_out : array-like of shape (n_samples,)
        Scores of known and of foreign samples; larger is more foreign.
    score_name : str, default="score"
        Name of the score, for the horizontal axis of the histogram.
    name : str, default=None
        Name of the predictor, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    line_, diagonal_ : matplotlib Line2D or None
        The ROC curve, and that of a score without information.
    bars_in_, bars_out_ : matplotlib StepPatch or None
        Histograms of the known and of the foreign samples.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import OODDisplay
    >>> OODDisplay.from_predictions([0.1, 0.2, 0.3, 0.4], [0.35, 0.5]).auroc
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
        cls, estimator, X_in, X_out, *, score="msp", name=None, ax=None, **kwargs
    ):
        """Plot a score of a fitted classifier on known and on foreign samples.

        Parameters
        ----------
        estimator : fitted classifier, or a pipeline or search that ends in one
        X_in : array-like of shape (n_in, ...)
            Samples of the training distribution, not used in training.
        X_out : array-like of shape (n_out, ...)
            Foreign samples.
        score : str, default="msp"
            A key of :data:`~sklearn_sharpbalance.metrics.OOD_SCORES`.
        name : str, default=None
            The estimator's class name and the score if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : OODDisplay
        """
        check_is_fitted(estimator)
        inside, outside = outputs_of(estimator, X_in), outputs_of(estimator, X_out)
        (score,) = check_score_names([score], inside, type(estimator).__name__)
        shown = SCORE_NAMES[score]
        return cls.from_predictions(
            ensemble_scores(score, inside),
            ensemble_scores(score, outside),
            score_name=shown,
            name=f"{type(estimator).__name__}, {shown}" if name is None else name,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_predictions(
        cls, scores_in, scores_out, *, score_name="score", name=None, ax=None, **kwargs
    ):
        """Plot known scores.

        Parameters
        ----------
        scores_in, scores_out : array-like of shape (n_samples,)
            Scores of known and of foreign samples; larger is more foreign.
        score_name : str, default="score"
            Name of the score, for the horizontal axis of the histogram.
        name : str, default=None
            Name for the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : OODDisplay
        """
        display = cls(scores_in, scores_out, score_name=score_name, name=name)
        return display.plot(ax, **kwargs)

    def plot(
        self,
        ax=None,
        *,
        kind="roc",
        n_bins=30,
        color=None,
        ref_line=True,
        legend=True,
    ):
        """Draw the ROC curve or the histogram.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        kind : {"roc", "histogram"}, default="roc"
            The ROC curve, of which several fit on the same axes, or the distribution
            of the score among known and among foreign samples.
        n_bins : int, default=30
            Bins of the histogram.
        color : color, default=None
            Colour of the curve; the next one of the palette if None.
        ref_line : bool, default=True
            Whether to draw the diagonal, the curve of a score without information.
        legend : bool, default=True
            Whether to draw a legend.

        Returns
        -------
        display : OODDisplay
        """
        if kind not in KINDS:
            raise InvalidInputError(f"kind must be 'roc' or 'histogram', got {kind!r}.")
        auroc = self.auroc  # raises if scores are missing or not finite
        self.line_ = self.diagonal_ = self.bars_in_ = self.bars_out_ = None
        is_roc = kind == "roc"
        ax = self._start(ax, (4.4, 4.8) if is_roc else (5.0, 3.8), square=is_roc)
        if is_roc:
            self._draw_roc(ax, auroc, color, ref_line)
        else:
            self._draw_histogram(ax, n_bins)
        tidy(ax)
        if legend:
            legend_above(ax, *ax.get_legend_handles_labels())
        return self

    def _draw_roc(self, ax, auroc, color, ref_line):
        n_before = sum(line.get_gid() == "roc" for line in ax.lines)
        is_drawn = any(line.get_gid() == "diagonal" for line in ax.lines)
        if ref_line and not is_drawn:
            (self.diagonal_,) = ax.plot(
                [0, 1], [0, 1], ls="--", lw=1, color=GREY, gid="diagonal"
            )
        scores = np.concatenate([self.scores_in, self.scores_out])
        is_out = np.arange(len(scores)) >= len(self.scores_in)
        rejected, detected, _ = roc_curve(is_out, scores)
        text = f"AUROC {auroc:.3f}"
        (self.line_,) = ax.plot(
            rejected,
            detected,
            color=colour(n_before, ax) if color is None else color,
            ls=LINES[n_before % len(LINES)],
            label=text if self.name is None else f"{self.name} ({text})",
            gid="roc",
        )
        ax.set(xlim=(-0.01, 1), ylim=(0, 1.01), aspect="equal")
        ax.set(xlabel="Share of known samples rejected")
        ax.set(ylabel="Share of foreign samples detected")

    def _draw_histogram(self, ax, n_bins):
        scores = np.concatenate([self.scores_in, self.scores_out])
        edges = np.histogram_bin_edges(scores, n_bins)
        shares = [
            np.histogram(part, edges)[0] / len(part)
            for part in (self.scores_in, self.scores_out)
        ]
        self.bars_in_ = ax.stairs(
            shares[0],
            edges,
            fill=True,
            color=colour(0, ax),
            alpha=0.5,
            label="known samples",
        )
        self.bars_out_ = ax.stairs(
            shares[1],
            edges,
            color=colour(3, ax),
            linewidth=1.6,
            label="foreign samples",
        )
        ax.set_ylim(bottom=0)
        ax.set(xlabel=self.score_name, ylabel="Share of samples")
