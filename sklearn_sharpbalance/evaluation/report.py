"""The result of an evaluation, and the ranking of its methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from sklearn_sharpbalance.evaluation._measures import METRICS, PARTS, Key, Run
from sklearn_sharpbalance.evaluation._resampling import interval
from sklearn_sharpbalance.exceptions import InvalidInputError


class EvaluationReport:
    """The result of :func:`evaluate` and :func:`compare`.

    Parameters
    ----------
    runs : mapping of str to sequence of dict
        For each method its runs (seeds, folds), each with the numbers by key.
    corruption : mapping of str to list of DataFrame, default=None
        Accuracy by kind and severity for each run, see :func:`corruption_accuracy`.
    random_state : int, default=0
        Seed of the draws of runs in :meth:`rank`.

    Attributes
    ----------
    methods : tuple of str

    Notes
    -----
    ``std`` is the standard deviation over training runs, with ``R - 1``; it is NaN for
    one run. The 95 % interval accounts for the choice of the test samples only. Its
    limits are percentiles of the draws; they are NaN without bootstrap draws, or for a
    number that is not a mean over samples. Samples that are drawn several times make
    bins look worse calibrated than they are. The draws of an ECE are therefore shifted
    so that their mean is its value.
    """

    def __init__(
        self,
        runs: Mapping[str, Sequence[Run]],
        *,
        corruption: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ):
        self.runs = {name: list(of_method) for name, of_method in runs.items()}
        self.methods = tuple(self.runs)
        self.corruption = corruption or {}
        self.random_state = random_state
        # A run of a single classifier has no numbers about members.
        self._rows = {
            (method, key): self._row(method, key)
            for key in _ordered_keys(self.runs)
            for method in self.methods
            if all(key in run for run in self.runs[method])
        }

    def __repr__(self) -> str:
        return repr(self.to_frame(wide=True))

    def _repr_html_(self) -> str:
        return self.to_frame(wide=True)._repr_html_()

    def _row(self, method: str, key: Key) -> dict[str, Any]:
        values = np.array([run[key].value for run in self.runs[method]])
        draws = self._draws(method, key)
        means = None if draws is None else draws.mean(axis=0)
        if means is not None and METRICS[key.metric].is_biased:
            means = np.maximum(means - means.mean() + values.mean(), 0)
        low, high = interval(means)
        return {
            "method": method,
            **key._asdict(),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else np.nan,
            "low": low,
            "high": high,
            "n_runs": len(values),
        }

    def _draws(self, method: str, key: Key) -> np.ndarray | None:
        """Return the bootstrap draws (R, B) of a number, if every run has them."""
        draws = [run[key].draws for run in self.runs[method]]
        found = [values for values in draws if values is not None]
        return np.stack(found) if len(found) == len(draws) else None

    def to_frame(self, *, wide=False):
        """Return the report as a pandas DataFrame.

        Parameters
        ----------
        wide : bool, default=False
            Return only the means, with a row for each number and a column for each
            method.

        Returns
        -------
        frame : pandas.DataFrame
            One row for each number, with the columns ``method``, ``metric``, ``part``
            ("members", the mean over them, or "ensemble"), ``detail`` (severity or
            score, else empty), ``mean`` and ``std`` over the runs of the method,
            ``low`` and ``high`` (bootstrap interval of the mean, over samples) and
            ``n_runs``.
        """
        frame = pd.DataFrame(list(self._rows.values()))
        if not wide:
            return frame
        index = ["metric", "part", "detail"]
        table = frame.pivot(index=index, columns="method", values="mean")
        order = frame[index].drop_duplicates().itertuples(index=False, name=None)
        return table.loc[list(order), list(self.methods)]

    def row(self, method, metric, part="ensemble", detail=""):
        """Return one row of the report.

        Parameters
        ----------
        method, metric : str
        part : {"ensemble", "members"}, default="ensemble"
        detail : str, default=""

        Returns
        -------
        row : dict
            With "mean", "std", "low", "high" and "n_runs".
        """
        return dict(self._rows[method, self._check(method, Key(metric, part, detail))])

    def run_values(self, method, metric, part="ensemble", detail=""):
        """Return the value in each run of a method, of shape (n_runs,).

        Parameters and their defaults are those of :meth:`row`.
        """
        key = self._check(method, Key(metric, part, detail))
        return np.array([run[key].value for run in self.runs[method]])

    def _check(self, method: str, key: Key) -> Key:
        """Return the key, or raise if the report does not have that number."""
        if method not in self.runs:
            raise InvalidInputError(
                f"Unknown method {method!r}. The report has "
                f"{', '.join(map(repr, self.methods))}."
            )
        if (method, key) not in self._rows:
            known = ", ".join(dict.fromkeys(repr(k.metric) for _, k in self._rows))
            for_detail = f" for {key.detail!r}" if key.detail else ""
            raise InvalidInputError(
                f"The report has no {key.metric!r} of the {key.part} of {method!r}"
                f"{for_detail}. It has {known}."
            )
        return key

    def plot(self, metric="accuracy", *, detail="", ax=None):
        """Draw one metric of all methods, with intervals.

        Parameters
        ----------
        metric : str, default="accuracy"
        detail : str, default=""
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        ax : matplotlib Axes
            Ensembles are filled, the means of their members hollow.
        """
        import matplotlib.pyplot as plt

        frame = self.to_frame().query("metric == @metric and detail == @detail")
        if frame.empty:
            self._check(self.methods[0], Key(metric, detail=detail))
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        for part, rows in frame.groupby("part"):
            shift, fill = (0.12, "none") if part == "members" else (-0.12, "full")
            at = rows["method"].map(self.methods.index) + shift
            spread = rows["mean"] - rows["low"], rows["high"] - rows["mean"]
            look = {"fmt": "o", "fillstyle": fill, "color": "C0", "label": part}
            ax.errorbar(rows["mean"], at, xerr=np.maximum(spread, 0), **look)
        ax.set_yticks(range(len(self.methods)), labels=self.methods)
        ax.set_ylim(len(self.methods) - 0.5, -0.5)
        ax.set_xlabel(Key(metric, detail=detail).label)
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
        return ax

    def rank(self, metric="accuracy", part="ensemble", detail=""):
        """Rank the methods, with paired differences to the best one.

        Parameters
        ----------
        metric : str, default="accuracy"
            A metric with a better direction, such as "nll" or "corrupted_accuracy".
        part : {"ensemble", "members"}, default="ensemble"
        detail : str, default=""

        Returns
        -------
        ranking : DataFrame
            Methods from best to worst, with the columns ``mean``, ``rank``,
            ``rank_low``, ``rank_high``, ``difference`` (to the best method),
            ``difference_low``, ``difference_high`` and ``best_fraction``, the fraction
            of the draws in which the method has the best mean.

        Notes
        -----
        Run i must be the same fold and seed for all methods. The rank is the mean over
        runs of the place in the run: 1 is best, and equal values share their places. A
        bootstrap draw takes as many runs with replacement, the same for all methods,
        with their values on that draw of the samples. Folds already differ in their
        samples, so that intervals are too wide rather than too narrow. On the other
        hand folds share training samples, which resampling cannot account for [1]_.

        References
        ----------
        .. [1] C. Nadeau and Y. Bengio, "Inference for the generalization error",
           Machine Learning 2003.
        """
        better = better_direction(metric)
        key = Key(metric, part, detail)
        values = [self.run_values(method, *key) for method in self.methods]
        if len({len(v) for v in values}) > 1:
            raise InvalidInputError(
                "Ranking compares runs in pairs, but the methods have "
                f"{[len(v) for v in values]} runs. Pass equally many of each."
            )
        drawn = [self._draws(method, key) for method in self.methods]
        draws = [own for own in drawn if own is not None]
        return rank_methods(
            self.methods,
            np.stack(values),
            np.stack(draws) if len(draws) == len(drawn) else None,
            better=better,
            random_state=self.random_state,
        )


def better_direction(metric: Any) -> int:
    """Return 1 or -1, or raise if methods cannot be ranked by the metric."""
    better = METRICS[metric].better if metric in METRICS else 0
    if better == 0:
        names = ", ".join(repr(name) for name, m in METRICS.items() if m.better)
        why = "it has no better direction" if metric in METRICS else "no such metric"
        raise InvalidInputError(
            f"Methods cannot be ranked by {metric!r}: {why}. Choose one of {names}."
        )
    return better


def _ordered_keys(runs: Mapping[str, Sequence[Run]]) -> list[Key]:
    """Return all keys, by metric, then by detail, members before the ensemble."""
    found = list(dict.fromkeys(key for rs in runs.values() for key in rs[0]))
    details = list(dict.fromkeys(key.detail for key in found))
    metrics = list(METRICS)

    def place(key: Key) -> tuple[int, int, int]:
        part = PARTS.index(key.part)
        return metrics.index(key.metric), details.index(key.detail), part

    return sorted(found, key=place)


def rank_methods(
    methods: Sequence[str],
    values: np.ndarray,
    draws: np.ndarray | None = None,
    *,
    better: int = 1,
    random_state: int = 0,
) -> pd.DataFrame:
    """Rank methods by their values (K, R) in runs, and by those on draws (K, R, B).

    Without draws, the values count as exact.
    """
    mean = values.mean(axis=1)  # (K,)
    best = int(np.argmax(better * mean))
    drawn = _draw_runs(values, draws, random_state)  # (K, R, B)
    ranks = rankdata(-better * drawn, axis=0).mean(axis=1)  # (K, B)
    means = drawn.mean(axis=1)  # (K, B)
    ranking = pd.DataFrame(
        {
            "mean": mean,
            "rank": rankdata(-better * values, axis=0).mean(axis=1),
            **_limits("rank", ranks),
            "difference": _differences(mean, best),
            **_limits("difference", _differences(means, best)),
            "best_fraction": _best_fraction(better * means),
        },
        index=pd.Index(list(methods), name="method"),
    )
    # The best mean comes first even where its mean rank is not the best.
    return ranking.iloc[np.lexsort([ranking["rank"], -better * mean])]


def _draw_runs(
    values: np.ndarray, draws: np.ndarray | None, random_state: int
) -> np.ndarray:
    """Return values (K, R, B) of runs drawn with replacement for all methods."""
    K, R = values.shape
    if draws is None:
        # A single exact run gives no interval.
        n_draws = 1000 if R > 1 else 0
        draws = np.broadcast_to(values[:, :, None], (K, R, n_draws))
    draws = np.asarray(draws, dtype=float)
    B = draws.shape[2]
    runs = np.random.default_rng([random_state, R]).integers(R, size=(R, B))
    return draws[:, runs, np.arange(B)]


def _differences(means: np.ndarray, best: int) -> np.ndarray:
    """Return each row minus the best row; equal infinities differ by zero."""
    zeros = np.zeros_like(means)
    return np.subtract(means, means[best], out=zeros, where=means != means[best])


def _limits(name: str, draws: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns with the limits of each row's interval."""
    ends = np.array([interval(row) for row in draws])  # (K, 2)
    return {f"{name}_low": ends[:, 0], f"{name}_high": ends[:, 1]}


def _best_fraction(scores: np.ndarray) -> np.ndarray:
    """Return the fraction of draws in which each row is the largest.

    Rows with equal values share the draw.
    """
    if scores.shape[1] == 0:
        return np.full(len(scores), np.nan)
    is_best = scores == scores.max(axis=0)  # (K, B)
    return (is_best / is_best.sum(axis=0)).mean(axis=1)
