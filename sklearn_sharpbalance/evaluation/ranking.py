"""Which method is best, and how sure that is."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from sklearn_sharpbalance.evaluation._resampling import interval
from sklearn_sharpbalance.evaluation._table import Table, markdown_table, number
from sklearn_sharpbalance.evaluation._text import decimals, format_cell
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["MethodRanking", "rank_methods"]


class MethodRanking(Table):
    """Methods from best to worst.

    As a mapping: columns ``method``, ``mean`` (of the metric), ``rank``, ``rank_low``,
    ``rank_high``, ``difference`` (to the best method), ``difference_low``,
    ``difference_high`` and ``best_share``, the share of the bootstrap draws in which
    the method has the best mean.

    Parameters
    ----------
    columns : mapping of str to array-like
    metric : str
        What was ranked by.
    better : {1, -1}
        Whether larger or smaller is better.

    Attributes
    ----------
    best : str
        Name of the best method.
    """

    def __init__(self, columns, *, metric="", better=1):
        super().__init__(columns)
        self.metric, self.better = metric, better

    @property
    def best(self) -> str:
        """Name of the method that ranks first."""
        return str(self["method"][0])

    def to_markdown(self, *, digits=3):
        """The ranking in Markdown, with the intervals in brackets.

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
            share = number(100 * self["best_share"][i], 0)
            rows.append(
                [
                    method,
                    number(self["mean"][i], places),
                    self._with_limits("rank", i, 2),
                    self._with_limits("difference", i, places),
                    share if share == "–" else f"{share} %",
                ]
            )
        return markdown_table(header, rows, [False, True, True, True, True])

    def _with_limits(self, name: str, i: int, places: int) -> str:
        row = {"mean": self[name][i], "low": self[f"{name}_low"][i]}
        row["high"] = self[f"{name}_high"][i]
        return format_cell(row, places, "interval")


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
        Value of each method in each run. Run r of all methods belongs together: the
        same fold, seed or both.
    draws : array-like of shape (K, R, B), default=None
        The same values on B bootstrap draws of the samples, shared by the methods.
        None takes the values as exact.
    better : {1, -1}, default=1
        Whether larger or smaller values are better.
    n_draws : int, default=1000
        Bootstrap draws of the runs, where ``draws`` does not fix their number.
    confidence : float, default=0.95
        Of the intervals.
    random_state : int, default=0
        Draws the runs.
    metric : str, default=""
        Name of the values.

    Returns
    -------
    ranking : MethodRanking

    Notes
    -----
    The rank of a method is the mean over runs of its place in the run, 1 being best
    and equals sharing their places. A bootstrap draw takes R runs with replacement,
    the same for all methods, with the values that they have on that draw of the
    samples. Differences are paired in the same way. Folds of a cross-validation differ
    by their samples already, so that drawing both makes the intervals there rather too
    wide than too narrow; on the other hand folds share training samples, which no
    resampling sees.

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
    fits = values.ndim == 2 and len(values) == len(methods) and values.size > 0
    if not fits or np.isnan(values).any():
        raise InvalidInputError(
            f"Ranking {len(methods)} methods takes one value for each of them in each "
            f"run, got an array of shape {values.shape}"
            f"{' with NaN' if np.isnan(values).any() else ''}."
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
    """Values (K, R, B) of runs drawn with replacement, the same for all methods."""
    K, R = values.shape
    if draws is None:
        # One exact run says nothing about others.
        draws = np.broadcast_to(values[:, :, None], (K, R, n_draws if R > 1 else 0))
    draws = np.asarray(draws, dtype=float)
    B = draws.shape[2]
    runs = np.random.default_rng([random_state, R]).integers(R, size=(R, B))
    return draws[:, runs, np.arange(B)]


def _differences(means: np.ndarray, best: int) -> np.ndarray:
    """Distance of each row to that of the best; equal infinities are not apart."""
    apart, none = means != means[best], np.zeros_like(means)
    return np.subtract(means, means[best], out=none, where=apart)


def _limits(name: str, draws: np.ndarray, confidence: float) -> dict[str, np.ndarray]:
    """Columns with the ends of the interval of each row."""
    ends = np.array([interval(row, confidence) for row in draws])  # (K, 2)
    return {f"{name}_low": ends[:, 0], f"{name}_high": ends[:, 1]}


def _best_share(scores: np.ndarray) -> np.ndarray:
    """Share of draws in which each row is the largest; equals share the draw."""
    if scores.shape[1] == 0:
        return np.full(len(scores), np.nan)
    first = scores == scores.max(axis=0)  # (K, B)
    return (first / first.sum(axis=0)).mean(axis=1)
