"""A metric against the number of members."""

from itertools import combinations
from math import ceil, comb

import numpy as np
from sklearn.metrics import accuracy_score, brier_score_loss

from sklearn_sharpbalance.aggregation.rules import combine_probas
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics import (
    expected_calibration_error,
    negative_log_likelihood,
)
from sklearn_sharpbalance.metrics._checks import check_member_probas, encode_labels
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.plotting._base import (
    Display,
    check_fitted,
    colour,
    legend_above,
    marker,
    n_drawn,
    tidy,
)

__all__ = ["EnsembleSizeDisplay"]

MAX_SUBSETS = 100  # of each size
# Label, and function of class codes and the probabilities of an ensemble.
METRICS = {
    "accuracy": ("Accuracy", lambda y, p: accuracy_score(y, p.argmax(1))),
    "nll": ("Negative log-likelihood", negative_log_likelihood),
    "brier": (
        "Brier score",
        lambda y, p: brier_score_loss(y, p, labels=range(p.shape[1])),
    ),
    "ece": ("Expected calibration error", expected_calibration_error),
}


class EnsembleSizeDisplay(Display):
    """A metric against the number of members.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one. The line is the
    mean over the subsets of members, at most 100 of each size, the band their range.

    Parameters
    ----------
    sizes : array-like of shape (n_sizes,)
        Numbers of members.
    scores : sequence of n_sizes array-likes
        The metric for each subset of members of that size.
    metric_name : str, default="Score"
        Label of the vertical axis.
    name : str, default=None
        Name of the ensemble, for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    line_ : matplotlib Line2D
        Mean over the subsets.
    band_ : matplotlib collection
    points_ : matplotlib PathCollection

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import EnsembleSizeDisplay
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> display = EnsembleSizeDisplay.from_predictions([0, 1], probas)
    >>> [values.tolist() for values in display.scores]
    [[0.5, 1.0], [1.0]]
    """

    def __init__(self, sizes, scores, *, metric_name="Score", name=None):
        self.sizes = sizes
        self.scores = scores
        self.metric_name = metric_name
        self.name = name

    @classmethod
    def from_estimator(cls, estimator, X, y, **kwargs):
        """Plot the metric of a fitted ensemble's subsets on ``X``.

        The members are combined by the ensemble's own rule. The best member and soups
        of weights raise an error: they do not combine predictions of a subset.

        Parameters
        ----------
        estimator : fitted ensemble, or a pipeline or search that ends in one
        X : array-like of shape (n_samples, ...)
        y : array-like of shape (n_samples,)
        **kwargs
            Passed to :meth:`from_predictions` and :meth:`plot`.
        """
        check_fitted(estimator, "aggregation_")
        estimator, X = reach_last_step(estimator, X)
        options = {"labels": estimator.classes_, "aggregation": estimator.aggregation_}
        probas = estimator.member_predict_proba(X)
        return cls.from_predictions(y, probas, **(options | kwargs))

    @classmethod
    def from_predictions(
        cls,
        y_true,
        member_probas,
        *,
        metric="accuracy",
        labels=None,
        aggregation="mean_logit",
        name=None,
        **kwargs,
    ):
        """Plot the metric of subsets of members whose probabilities are known.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            Class codes, the columns of ``member_probas``; or any with ``labels``.
        member_probas : array-like of shape (n_members, n_samples, n_classes)
        metric : str or callable, default="accuracy"
            "accuracy", "nll", "brier", "ece", or a function
            ``metric(y_codes, proba) -> float``.
        labels : array-like of shape (n_classes,), default=None
            Label of each column.
        aggregation : str or Aggregation, default="mean_logit"
        name : str, default=None
            Name for the legend.
        **kwargs
            Passed to :meth:`plot`.
        """
        probas = check_member_probas(member_probas)
        M, N, C = probas.shape
        y = encode_labels(y_true, n_classes=C, n_samples=N, labels=labels)
        metric_name, function = _resolve_metric(metric)
        sizes, scores = np.arange(1, M + 1), []
        for size in sizes:
            subsets = [probas[list(rows)] for rows in member_subsets(M, size)]
            found = [function(y, combine_probas(one, aggregation)) for one in subsets]
            scores.append(np.array(found))
        return cls(sizes, scores, metric_name=metric_name, name=name).plot(**kwargs)

    def plot(self, ax=None):
        """Draw the mean over the subsets, their range, and every subset.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on, which may have other ensembles; None makes a new
            figure.
        """
        ax = self._start(ax)
        n_before = n_drawn(ax, "size")
        color = colour(n_before, ax)
        sizes = np.asarray(self.sizes)
        low, high = ([f(values) for values in self.scores] for f in (np.min, np.max))
        self.band_ = ax.fill_between(sizes, low, high, color=color, alpha=0.15, lw=0)
        at = np.repeat(sizes, [len(values) for values in self.scores])
        look = {"s": 9, "color": color, "alpha": 0.5, "lw": 0}
        self.points_ = ax.scatter(at, np.concatenate(self.scores), **look)
        (self.line_,) = ax.plot(
            sizes,
            [np.mean(values) for values in self.scores],
            color=color,
            marker=marker(n_before),
            label=self.name,
            gid="size",
        )
        ax.set(xlabel="Number of members", ylabel=self.metric_name)
        ticks = np.union1d(sizes, ax.get_xticks() if n_before else sizes)
        ax.set_xticks(ticks[:: ceil(len(ticks) / 15)])  # at most 15
        tidy(ax, grid="y")
        legend_above(ax, *ax.get_legend_handles_labels())
        return self


def _resolve_metric(metric):
    """Return the label of a metric, and its function of codes and probabilities."""
    if callable(metric):
        label = getattr(metric, "__name__", type(metric).__name__).replace("_", " ")
        return label, metric
    if metric not in METRICS:
        names = ", ".join(repr(name) for name in METRICS)
        raise InvalidInputError(
            f"Unknown metric {metric!r}. Choose one of {names}, or pass a function "
            "metric(y_codes, proba)."
        )
    return METRICS[metric]


def member_subsets(n_members: int, size: int) -> list[tuple[int, ...]]:
    """Return all subsets of one size, or some of them drawn at random."""
    if comb(n_members, size) <= MAX_SUBSETS:
        return list(combinations(range(n_members), size))
    rng = np.random.default_rng(size)
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < MAX_SUBSETS:
        drawn.add(tuple(sorted(rng.permutation(n_members)[:size].tolist())))
    return sorted(drawn)
