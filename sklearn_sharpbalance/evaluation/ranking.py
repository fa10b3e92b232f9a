"""Rank methods by a metric, with intervals."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from sklearn_sharpbalance.evaluation._resampling import interval
from sklearn_sharpbalance.evaluation._table import (
    Table,
    decimals,
    format_mean,
    format_number,
    markdown_table,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["MethodRanking", "rank_methods"]


class MethodRanking(Table):
    """Methods from best to worst.

    A mapping with the columns ``method``, ``mean`` (of the metric), ``rank``,
    ``rank_low``, ``rank_high``, ``difference`` (to the best method),
    ``difference_low``, ``difference_high`` and ``best_share``, the share of the
    bootstrap draws in which the method has the best mean.

    Parameters
    ----------
    columns : mapping of str to array-like
    metric : str
        Name of the metric that the methods are ranked by.
    better : {1, -1}
        Whether larger (1) or smaller (-1) values are better.

    Attributes
    ----------
    best : str
        Name of the best method.
    """

    def __init__(self, columns, *, metric="", better=1):
        super().__init__(columns)
        self.metric = metric
        self.better = better

    @property
    def best(self) -> str:
        """Name of the method that ranks first."""
        return str(self["method"][0])

    def to_markdown(self, *, digits=3):
        """Return the ranking in Markdown, with the intervals in brackets.

        Parameters
        ----------
        digits : int, default=3
            Significant digits of the smallest mean.

        Returns
        -------
        text : str
        """
        places = decimals(self["mean"], digits)
        header = ["method", self.metric or "mean", "mean rank", "difference", "best in"]
        rows = []
        for i, method in enumerate(self["method"].tolist()):
            rank = with_interval(self, "rank", i)
            difference = with_interval(self, "difference", i)
            share = self["best_share"][i]
            rows.append(
                [
                    method,
                    format_number(self["mean"][i], places),
                    format_mean(rank, 2, "interval"),
                    format_mean(difference, places, "interval"),
                    "–" if np.isnan(share) else f"{100 * share:.0f} %",
                ]
            )
        return markdown_table(header, rows, [False, True, True, True, True])


def with_interval(ranking: MethodRanking, column: str, i: int) -> dict[str, float]:
    """Return "rank" or "difference" of row ``i`` as "mean", with "low" and "high"."""
    return {
        "mean": ranking[column][i],
        "low": ranking[f"{column}_low"][i],
        "high": ranking[f"{column}_high"][i],
    }


def rank_methods(
    methods: Sequence[str],
    values: np.ndarray,
    draws: np.ndarray | None = None,
    *,
    better: int = 1,
    n_draws: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
    metric: str = "",
) -> MethodRanking:
    r"""Rank methods by their values in several runs.

    Parameters
    ----------
    methods : sequence of str of length K
    values : array-like of shape (K, R)
        Value of each method in each run. Run r is the same fold, seed or both for all
        methods.
    draws : array-like of shape (K, R, B), default=None
        The same values on B bootstrap draws of the samples, which the methods share.
        If None, the values count as exact.
    better : {1, -1}, default=1
        Whether larger or smaller values are better.
    n_draws : int, default=1000
        Number of bootstrap draws of the runs, used if ``draws`` is None.
    confidence : float, default=0.95
        Confidence level of the intervals.
    random_state : int, default=0
        Seed of the draws of runs.
    metric : str, default=""
        Name of the values.

    Returns
    -------
    ranking : MethodRanking

    Notes
    -----
    The rank of a method is the mean over runs of its place in the run: 1 is best, and
    equal values share their places. A bootstrap draw takes R runs with replacement,
    the same for all methods, with their values on that draw of the samples.
    Differences are paired in the same manner. The folds of a cross-validation already
    differ in their samples, so that drawing both runs and samples makes intervals too
    wide rather than too narrow. On the other hand folds share training samples, which
    resampling cannot account for.

    References
    ----------
    .. [1] J. Demsar, "Statistical comparisons of classifiers over multiple data sets",
       JMLR 2006.
    .. [2] C. Nadeau and Y. Bengio, "Inference for the generalization error", Machine
       Learning 2003.

    Examples
    --------
    >>> ranking = rank_methods(["a", "b"], [[0.5, 0.75], [0.75, 0.875]])
    >>> ranking.best, ranking["rank"], ranking["difference"]
    ('b', array([1., 2.]), array([ 0.    , -0.1875]))
    """
    values = np.asarray(values, dtype=float)
    has_shape = values.ndim == 2 and len(values) == len(methods) and values.size > 0
    with_nan = " with NaN" if np.isnan(values).any() else ""
    if not has_shape or with_nan:
        raise InvalidInputError(
            f"Ranking {len(methods)} methods takes one value for each of them in each "
            f"run, got an array of shape {values.shape}{with_nan}."
        )
    if better not in (1, -1):
        raise InvalidInputError(f"better must be 1 or -1, got {better!r}.")
    mean = values.mean(axis=1)  # (K,)
    best = int(np.argmax(better * mean))
    drawn = _draw_runs(values, draws, n_draws, random_state)  # (K, R, B)
    ranks = rankdata(-better * drawn, axis=0).mean(axis=1)  # (K, B)
    means = drawn.mean(axis=1)  # (K, B)
    columns = {
        "method": np.asarray(methods, dtype=str),
        "mean": mean,
        "rank": rankdata(-better * values, axis=0).mean(axis=1),
        **_limits("rank", ranks, confidence),
        "difference": _differences(mean, best),
        **_limits("difference", _differences(means, best), confidence),
        "best_share": _best_share(better * means),
    }
    # The best mean comes first even where its mean rank is not the best.
    order = np.lexsort([columns["rank"], -better * mean])
    ordered = {name: column[order] for name, column in columns.items()}
    return MethodRanking(ordered, metric=metric, better=better)


def _draw_runs(
    values: np.ndarray, draws: np.ndarray | None, n_draws: int, random_state: int
) -> np.ndarray:
    """Return values (K, R, B) of runs drawn with replacement for all methods."""
    K, R = values.shape
    if draws is None:
        # A single exact run gives no interval.
        n_draws = n_draws if R > 1 else 0
        draws = np.broadcast_to(values[:, :, None], (K, R, n_draws))
    draws = np.asarray(draws, dtype=float)
    B = draws.shape[2]
    runs = np.random.default_rng([random_state, R]).integers(R, size=(R, B))
    return draws[:, runs, np.arange(B)]


def _differences(means: np.ndarray, best: int) -> np.ndarray:
    """Return each row minus the best row; equal infinities differ by zero."""
    zeros = np.zeros_like(means)
    return np.subtract(means, means[best], out=zeros, where=means != means[best])


def _limits(name: str, draws: np.ndarray, confidence: float) -> dict[str, np.ndarray]:
    """Return columns with the limits of each row's interval."""
    ends = np.array([interval(row, confidence) for row in draws])  # (K, 2)
    return {f"{name}_low": ends[:, 0], f"{name}_high": ends[:, 1]}


def _best_share(scores: np.ndarray) -> np.ndarray:
    """Return the share of draws in which each row is the largest.

    Rows with equal values share the draw.
    """
    if scores.shape[1] == 0:
        return np.full(len(scores), np.nan)
    is_best = scores == scores.max(axis=0)  # (K, B)
    return (is_best / is_best.sum(axis=0)).mean(axis=1)
