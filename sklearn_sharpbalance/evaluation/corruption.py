"""Accuracy and calibration on corrupted pictures and tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.corruption.sets import corrupted_sets
from sklearn_sharpbalance.evaluation._inputs import check_arrays
from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Run,
    SampleNumbers,
    as_run,
    weighted_means,
)
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_ece
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import outputs_of
from sklearn_sharpbalance.plotting import CorruptionDisplay

__all__ = ["CorruptionAccuracy", "corruption_accuracy"]


class CorruptionAccuracy(Table):
    """Accuracy of an ensemble and its members by kind of corruption and severity.

    A mapping with the columns ``kind``, ``severity``, ``ensemble`` and ``members`` (the
    mean over them), and one row for each corrupted set.

    Parameters
    ----------
    kinds : sequence of str of length K
        Names of the corruptions.
    severities : sequence of int of length S
        Severities, 1 to 5.
    ensemble : array-like of shape (K, S)
        Accuracy of the ensemble on each corrupted set.
    members : array-like of shape (M, K, S)
        Accuracy of each member.

    Attributes
    ----------
    kinds, severities : tuple
    ensemble_ : ndarray of shape (K, S)
    members_ : ndarray of shape (M, K, S)
    mean, member_mean : float
        cACC: the mean over kinds and severities.
    by_severity, member_by_severity : ndarray of shape (S,)
    by_kind, member_by_kind : ndarray of shape (K,)

    Examples
    --------
    >>> result = CorruptionAccuracy(["fog"], [1, 5], [[0.75, 0.25]], [[[0.5, 0.0]]])
    >>> result.mean, result.member_mean
    (0.5, 0.25)
    """

    def __init__(self, kinds, severities, ensemble, members):
        self.kinds, self.severities = tuple(kinds), tuple(severities)
        self.ensemble_ = np.asarray(ensemble, dtype=float)
        self.members_ = np.asarray(members, dtype=float)
        shape = (len(self.kinds), len(self.severities))
        if self.ensemble_.shape != shape or self.members_.shape[1:] != shape:
            raise InvalidInputError(
                f"{shape[0]} kinds and {shape[1]} severities need an ensemble of shape "
                f"{shape} and members of shape (M, {shape[0]}, {shape[1]}), got "
                f"{self.ensemble_.shape} and {self.members_.shape}."
            )
        super().__init__(
            {
                "kind": np.repeat(self.kinds, shape[1]),
                "severity": np.tile(self.severities, shape[0]),
                "ensemble": self.ensemble_.ravel(),
                "members": self.members_.mean(axis=0).ravel(),
            }
        )

    @property
    def mean(self) -> float:
        """Accuracy of the ensemble over all kinds and severities (cACC)."""
        return float(self.ensemble_.mean())

    @property
    def member_mean(self) -> float:
        """Accuracy of a member over all kinds and severities."""
        return float(self.members_.mean())

    @property
    def by_severity(self) -> np.ndarray:
        """Accuracy of the ensemble at each severity, over the kinds."""
        return self.ensemble_.mean(axis=0)

    @property
    def member_by_severity(self) -> np.ndarray:
        """Accuracy of a member at each severity."""
        return self.members_.mean(axis=(0, 1))

    @property
    def by_kind(self) -> np.ndarray:
        """Accuracy of the ensemble on each kind, over the severities."""
        return self.ensemble_.mean(axis=1)

    @property
    def member_by_kind(self) -> np.ndarray:
        """Accuracy of a member on each kind."""
        return self.members_.mean(axis=(0, 2))

    def display(self, ax=None, *, name="Ensemble", **kwargs):
        """Draw the accuracy by severity.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        name : str, default="Ensemble"
        **kwargs
            Passed to :meth:`~sklearn_sharpbalance.plotting.CorruptionDisplay.plot`.

        Returns
        -------
        display : CorruptionDisplay
        """
        display = CorruptionDisplay(
            self.by_severity[None],
            member_accuracy=self.member_by_severity[None],
            severities=self.severities,
            names=[name],
        )
        return display.plot(ax, **kwargs)


def corruption_accuracy(
    estimator,
    X,
    y,
    *,
    corruptions=None,
    severities=SEVERITIES,
    random_state=0,
):
    """Measure the accuracy of an ensemble and its members on corrupted samples.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package. Any other classifier counts as an ensemble with
        itself as the only member. Of a pipeline or a finished search the
        classifier inside is used.
    X : array-like
        Clean pictures, uint8 of shape (N, H, W[, C]) or (N, C, H, W), or a table
        (N, F). Not used if ``corruptions`` is a mapping.
    y : array-like of shape (N,)
        Labels.
    corruptions : str, iterable of str or callable, mapping, True or None, default=None
        Kinds of corruption or groups of them; None, True or "all" is all fifteen for
        pictures, and all but "missing_nan" for tables. A mapping of (kind, severity)
        to samples and labels, such as
        :class:`~sklearn_sharpbalance.corruption.CorruptionFiles`, is used as it is.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    random_state : int, Generator, RandomState or None, default=0
        Controls the random parts of the corruptions.

    Returns
    -------
    result : CorruptionAccuracy
        ``mean`` is the cACC of the ensemble; ``by_severity`` and ``by_kind`` are the
        means that it consists of.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_sharpbalance.evaluation import corruption_accuracy
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=500).fit(X, y)
    >>> result = corruption_accuracy(clf, X, y, corruptions=["feature_noise"])
    >>> result.ensemble_.shape
    (1, 5)
    >>> bool(result.by_severity[0] > result.by_severity[4])
    True
    """
    (sets,) = predict_corrupted(
        [estimator],
        X,
        y,
        corruptions=corruptions,
        severities=severities,
        random_state=random_state,
    )
    return accuracy_by_kind(sets)


class MeasuredSet(NamedTuple):
    """Numbers of one classifier on one corrupted set."""

    kind: str
    severity: int
    numbers: SampleNumbers
    rows: np.ndarray | None  # (N,) of the clean samples, if they were drawn again

    @property
    def n_samples(self) -> int:
        return self.numbers.right.shape[1]

    def statistics(self, clean_counts: np.ndarray) -> dict[Key, np.ndarray]:
        """Return accuracy, NLL and ECE, (B,) each, under counts of clean samples."""
        counts = self._counts(clean_counts)
        found = weighted_means(counts, self.numbers.averages())
        found |= self.numbers.over_predictors("ece", weighted_ece, counts)
        detail = f"severity {self.severity}"
        return {
            Key(f"corrupted_{key.metric}", key.part, detail): values
            for key, values in found.items()
        }

    def _counts(self, clean_counts: np.ndarray) -> np.ndarray:
        """Return counts (B, N) of the set: copies of a sample are drawn together."""
        if self.rows is None:
            return clean_counts
        counts = clean_counts[:, self.rows]
        total = counts.sum(axis=1, keepdims=True)
        return counts * (counts.shape[1] / np.maximum(total, 1))


def predict_corrupted(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    *,
    corruptions: Any,
    severities: Any,
    random_state: Any,
) -> list[list[MeasuredSet]]:
    """Return the corrupted sets of each estimator; all of them share the samples."""
    check_arrays(X, "Corrupting samples")
    sets = corrupted_sets(
        X,
        y,
        corruptions=corruptions,
        severities=severities,
        random_state=random_state,
    )
    result: list[list[MeasuredSet]] = [[] for _ in estimators]
    for data in sets:
        for of_estimator, estimator in zip(result, estimators):
            outputs = outputs_of(estimator, data.X)
            numbers = SampleNumbers.from_outputs(outputs, outputs.codes(data.y))
            of_estimator.append(
                MeasuredSet(data.kind, data.severity, numbers, data.rows)
            )
    if not result or not result[0]:
        raise InvalidInputError(
            f"There is nothing to measure: corruptions={corruptions!r} at severities "
            f"{severities!r} make no corrupted set."
        )
    return result


def accuracy_by_kind(sets: Sequence[MeasuredSet]) -> CorruptionAccuracy:
    """Return the accuracy on each set, by kind and severity."""
    kinds = list(dict.fromkeys(one.kind for one in sets))
    severities = list(dict.fromkeys(one.severity for one in sets))
    accuracy = np.stack([one.numbers.right.mean(axis=1) for one in sets], axis=1)
    accuracy = accuracy.reshape(-1, len(kinds), len(severities))  # (M + 1, K, S)
    return CorruptionAccuracy(kinds, severities, accuracy[-1], accuracy[:-1])


def measure_corruption(
    sets: Sequence[MeasuredSet], draws: Draws, stream: int = 0
) -> Run:
    """Measure accuracy, NLL and ECE by severity and in all, with bootstrap draws."""
    # Sets of one size are copies of the same samples and share their draws.
    by_size: dict[int, list[MeasuredSet]] = {}
    for one in sets:
        by_size.setdefault(one.n_samples, []).append(one)
    sums = [
        draws.apply(partial(_sum_statistics, same_size), n_samples, stream)
        for n_samples, same_size in by_size.items()
    ]
    totals = _add(sums)
    n_sets = Counter(f"severity {one.severity}" for one in sets)
    by_severity = {
        key: total / n
        for detail, n in n_sets.items()
        for key, total in totals.items()
        if key.detail == detail
    }
    overall: dict[Key, list[np.ndarray]] = {}
    for key, mean in by_severity.items():
        overall.setdefault(key._replace(detail=""), []).append(mean)
    means = {key: np.mean(values, axis=0) for key, values in overall.items()}
    return as_run(means | by_severity)


def _sum_statistics(
    sets: Sequence[MeasuredSet], counts: np.ndarray
) -> dict[Key, np.ndarray]:
    """Return the sums over sets of their statistics (B,)."""
    return _add(one.statistics(counts) for one in sets)


def _add(parts: Iterable[Mapping[Key, np.ndarray]]) -> dict[Key, np.ndarray]:
    """Add the values of equal keys."""
    total: dict[Key, np.ndarray] = {}
    for part in parts:
        for key, values in part.items():
            total[key] = total[key] + values if key in total else values
    return total
