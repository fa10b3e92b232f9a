"""The result of an evaluation: a tidy table, Markdown, a page, a ranking."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sklearn_sharpbalance.evaluation._measures import METRICS, PARTS, Key, Run
from sklearn_sharpbalance.evaluation._resampling import interval
from sklearn_sharpbalance.evaluation._table import (
    Table,
    decimals,
    format_mean,
    markdown_table,
)
from sklearn_sharpbalance.evaluation.ranking import MethodRanking, rank_methods
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["EvaluationReport"]


class EvaluationReport(Table):
    """The result of :func:`evaluate` and :func:`compare`.

    A mapping that is a tidy table, with one row for each number and the columns
    ``method``, ``metric``, ``part`` ("members", the mean over them, or "ensemble"),
    ``detail`` (severity or score, else empty), ``mean`` and ``std`` over the runs of
    the method, ``low`` and ``high`` (bootstrap interval of the mean, over samples) and
    ``n_runs``.

    Parameters
    ----------
    runs : mapping of str to sequence of dict
        For each method its runs (seeds, folds), each with the numbers by key.
    n_samples : int
        Number of test samples, of all folds together.
    confidence : float, default=0.95
        Confidence level of the intervals.
    calibration : mapping of str to CalibrationBins, default=None
        Reliability of each method's ensemble, over all runs together.
    corruption : mapping of str to list of CorruptionAccuracy, default=None
        Accuracy by kind and severity, for each run.
    random_state : int, default=0
        Seed of the draws of runs in :meth:`rank`.

    Attributes
    ----------
    methods : tuple of str
    ranking : MethodRanking or None
        Set by :func:`compare`.

    Notes
    -----
    ``std`` is the standard deviation over training runs, with ``R - 1``; it is NaN for
    one run. The interval accounts for the choice of the test samples only. Its limits
    are percentiles of the draws; they are NaN without bootstrap draws, or for a number
    that is not a mean over samples. Samples that are drawn several times make bins
    look worse calibrated than they are. The draws of an ECE are therefore shifted so
    that their mean is its value.
    """

    def __init__(
        self,
        runs: Mapping[str, Sequence[Run]],
        *,
        n_samples: int,
        confidence: float = 0.95,
        calibration: Mapping[str, Any] | None = None,
        corruption: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ):
        self.runs = {name: list(of_method) for name, of_method in runs.items()}
        self.methods = tuple(self.runs)
        self.n_samples = n_samples
        self.confidence = confidence
        self.calibration = calibration or {}
        self.corruption = corruption or {}
        self.random_state = random_state
        self.ranking: MethodRanking | None = None
        self.keys_ = [
            key
            for key in _ordered_keys(self.runs)
            if any(self._is_in_every_run(method, key) for method in self.methods)
        ]
        rows = [
            self._row(method, key)
            for key in self.keys_
            for method in self.methods
            if self._is_in_every_run(method, key)
        ]
        super().__init__({name: [row[name] for row in rows] for name in rows[0]})
        self._index = {
            (row["method"], Key(row["metric"], row["part"], row["detail"])): row
            for row in rows
        }

    def _row(self, method: str, key: Key) -> dict[str, Any]:
        """Return a row of the table."""
        values = self.run_values(method, **key._asdict())
        draws = self._draws(method, key)
        means = None if draws is None else draws.mean(axis=0)
        if means is not None and METRICS[key.metric].is_biased:
            means = np.maximum(means - means.mean() + values.mean(), 0)
        low, high = interval(means, self.confidence)
        return {
            "method": method,
            **key._asdict(),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else np.nan,
            "low": low,
            "high": high,
            "n_runs": len(values),
        }

    def run_values(self, method, metric, part="ensemble", detail=""):
        """Return the value in each run of a method.

        Parameters
        ----------
        method, metric : str
        part : {"ensemble", "members"}, default="ensemble"
        detail : str, default=""

        Returns
        -------
        values : ndarray of shape (n_runs,)
        """
        key = self._check(method, Key(metric, part, detail))
        return np.array([run[key].value for run in self.runs[method]])

    def row(self, method, metric, part="ensemble", detail=""):
        """Return one row of the table.

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
        return dict(self._index[method, self._check(method, Key(metric, part, detail))])

    def has(self, method, metric, part="ensemble", detail=""):
        """Return whether the report has a number.

        Parameters and their defaults are those of :meth:`row`.
        """
        return (method, Key(metric, part, detail)) in self._index

    def _draws(self, method: str, key: Key) -> np.ndarray | None:
        """Return the bootstrap draws (R, B) of a number, if every run has them."""
        draws = [run[key].draws for run in self.runs[method]]
        found = [values for values in draws if values is not None]
        return np.stack(found) if len(found) == len(draws) else None

    def _is_in_every_run(self, method: str, key: Key) -> bool:
        """Return whether every run has a number.

        A run of a single classifier has no numbers about members.
        """
        return all(key in run for run in self.runs[method])

    def _check(self, method: str, key: Key) -> Key:
        """Return the key, or raise if the report does not have that number."""
        if method not in self.runs:
            raise InvalidInputError(
                f"Unknown method {method!r}. The report has "
                f"{', '.join(map(repr, self.methods))}."
            )
        if not self._is_in_every_run(method, key):
            known = ", ".join(dict.fromkeys(repr(k.metric) for k in self.keys_))
            for_detail = f" for {key.detail!r}" if key.detail else ""
            raise InvalidInputError(
                f"The report has no {key.metric!r} of the {key.part} of {method!r}"
                f"{for_detail}. It has {known}."
            )
        return key

    def rank(self, metric="accuracy", part="ensemble", detail=""):
        """Rank the methods.

        Parameters
        ----------
        metric : str, default="accuracy"
            A metric with a better direction, such as "nll" or "corrupted_accuracy".
        part : {"ensemble", "members"}, default="ensemble"
        detail : str, default=""

        Returns
        -------
        ranking : MethodRanking
            Mean ranks and paired differences to the best method, with intervals; see
            :func:`rank_methods`. Run i is the same fold and seed for all methods.
        """
        better = better_direction(metric)
        values = [
            self.run_values(method, metric, part=part, detail=detail)
            for method in self.methods
        ]
        if len({len(v) for v in values}) > 1:
            raise InvalidInputError(
                "Ranking compares runs in pairs, but the methods have "
                f"{[len(v) for v in values]} runs. Pass equally many of each."
            )
        key = Key(metric, part, detail)
        drawn = [self._draws(method, key) for method in self.methods]
        draws = [own for own in drawn if own is not None]
        return rank_methods(
            self.methods,
            np.stack(values),
            np.stack(draws) if len(draws) == len(drawn) else None,
            better=better,
            confidence=self.confidence,
            random_state=self.random_state,
            metric=key.label,
        )

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
        """
        frame = super().to_frame()
        if not wide:
            return frame
        index = ["metric", "part", "detail"]
        table = frame.pivot(index=index, columns="method", values="mean")
        return table.loc[[tuple(key) for key in self.keys_], list(self.methods)]

    def to_markdown(self, *, digits=3, spread="auto"):
        """Return the report in Markdown: a row per number, a column per method.

        Parameters
        ----------
        digits : int, default=3
            Significant digits of the smallest mean in a row.
        spread : {"auto", "std", "interval", None}, default="auto"
            What to write beside the means: the standard deviation over runs, the
            bootstrap interval, or nothing. "auto" is "std" if there are several runs,
            else "interval".

        Returns
        -------
        text : str
        """
        if spread not in ("auto", "std", "interval", None):
            raise InvalidInputError(
                f"spread must be 'auto', 'std', 'interval' or None, got {spread!r}."
            )
        rows = []
        for key in self.keys_:
            found = [self._index.get((method, key)) for method in self.methods]
            places = decimals([row["mean"] for row in found if row], digits)
            cells = [
                "–" if row is None else format_mean(row, places, spread)
                for row in found
            ]
            rows.append([key.label, key.part, *cells])
        header = ["metric", "of", *self.methods]
        is_numeric = [False, False] + [True] * len(self.methods)
        return markdown_table(header, rows, is_numeric)

    def to_html(self, path=None, *, title="Evaluation report"):
        """Return the report as one self-contained HTML page with figures.

        The page needs no network, no script and no other file.

        Parameters
        ----------
        path : str or Path, default=None
            File to write the page to; None only returns it.
        title : str, default="Evaluation report"
            Heading of the page.

        Returns
        -------
        html : str
        """
        from sklearn_sharpbalance.evaluation._html import page

        text = page(self, title)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        from sklearn_sharpbalance.evaluation._html import fragment

        return fragment(self)


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
    return sorted(
        found,
        key=lambda k: (
            metrics.index(k.metric),
            details.index(k.detail),
            PARTS.index(k.part),
        ),
    )
