"""Accuracy on corrupted samples, and detection of out-of-distribution samples."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch.utils.data import Dataset

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.corruption.sets import corrupted_sets
from sklearn_sharpbalance.evaluation._measures import (
    Key,
    Measured,
    Run,
    SampleNumbers,
    as_run,
    weighted_means,
)
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_auroc
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import Outputs, outputs_of
from sklearn_sharpbalance.metrics.ood import (
    SCORE_NAMES,
    default_scores,
    ensemble_scores,
    member_scores,
    ood_auroc,
)


def corruption_accuracy(
    estimator, X, y, *, corruptions=None, severities=SEVERITIES, random_state=0
):
    """Measure the accuracy of an ensemble and its members on corrupted samples.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package. Any other classifier counts as an ensemble with
        itself as the only member. Of a pipeline or a finished search the
        classifier inside is used.
    X : array-like
        Clean images, uint8 of shape (N, H, W[, C]) or (N, C, H, W), or a table
        (N, F). Not used if ``corruptions`` is a mapping.
    y : array-like of shape (N,)
        Labels.
    corruptions : str, iterable of str or callable, mapping, True or None, default=None
        Kinds of corruption or groups of them; None, True or "all" is all fifteen for
        images, and all but "missing_nan" for tables. A mapping of (kind, severity)
        to samples and labels, such as
        :class:`~sklearn_sharpbalance.corruption.CorruptionFiles`, is used as it is.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    random_state : int, Generator, RandomState or None, default=0
        Controls the random parts of the corruptions.

    Returns
    -------
    accuracy : DataFrame
        With the index ``kind`` and ``severity``, and the columns ``ensemble``,
        ``members`` (the mean over them) and ``member_0``, ``member_1``, ... The mean
        of a column is its cACC.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_sharpbalance.evaluation import corruption_accuracy
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=500).fit(X, y)
    >>> accuracy = corruption_accuracy(clf, X, y, corruptions=["feature_noise"])
    >>> by_severity = accuracy["ensemble"].groupby("severity").mean()
    >>> bool(by_severity[1] > by_severity[5])
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
        found |= self.numbers.calibration(counts)
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
    check_arrays(X)
    sets = corrupted_sets(
        X, y, corruptions=corruptions, severities=severities, random_state=random_state
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


def accuracy_by_kind(sets: Sequence[MeasuredSet]) -> pd.DataFrame:
    """Return the accuracy of ensemble and members on each set."""
    accuracy = np.stack([one.numbers.right.mean(axis=1) for one in sets])  # (S, M + 1)
    index = pd.MultiIndex.from_tuples(
        [(one.kind, one.severity) for one in sets], names=["kind", "severity"]
    )
    columns = {"ensemble": accuracy[:, -1], "members": accuracy[:, :-1].mean(axis=1)}
    columns |= {f"member_{m}": own for m, own in enumerate(accuracy[:, :-1].T)}
    return pd.DataFrame(columns, index=index)


def measure_corruption(
    sets: Sequence[MeasuredSet], draws: Draws, stream: int = 0
) -> Run:
    """Measure accuracy, NLL and ECE by severity and in all, with bootstrap draws."""
    # Sets of one size are copies of the same samples and share their draws.
    by_size: dict[int, list[MeasuredSet]] = {}
    for one in sets:
        by_size.setdefault(one.n_samples, []).append(one)
    sums = [
        draws.apply(partial(_sum_statistics, same_size), (n_samples, stream))
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


def check_arrays(X: Any) -> None:
    """Raise if the samples are not an array or a DataFrame."""
    if isinstance(X, Mapping | Dataset):
        raise InvalidInputError(
            "Corrupting samples works on arrays and DataFrames, got "
            f"{type(X).__name__}."
        )


# Scores of known and of out-of-distribution samples by the same predictor.
Pairs = list[tuple[np.ndarray, np.ndarray]]


def _pairs(score: str, inside: Outputs, outside: Outputs) -> dict[str, Pairs]:
    """Return the scores of the ensemble and those of each member."""
    whole = ensemble_scores(score, inside), ensemble_scores(score, outside)
    members = zip(member_scores(score, inside), member_scores(score, outside))
    return {"ensemble": [whole], "members": list(members)}


def measure_ood(
    inside: Outputs, outside: Mapping[str, Outputs], draws: Draws, stream: int = 0
) -> Run:
    """Measure the AUROC of every score for every set, with bootstrap draws.

    A draw takes both known and out-of-distribution samples.
    """
    run: Run = {}
    for number, (set_name, out) in enumerate(outside.items()):
        by_key: dict[Key, Pairs] = {}
        for score in default_scores(inside):
            detail = SCORE_NAMES[score]
            detail = f"{set_name}: {detail}" if len(outside) > 1 else detail
            for part, pairs in _pairs(score, inside, out).items():
                if pairs:
                    by_key[Key("ood_auroc", part, detail)] = pairs
        known, foreign = (len(one.proba) for one in (inside, out))
        drawn = draws.apply(
            partial(_weighted_means, by_key),
            (known, stream),
            (foreign, stream, 1 + number),
        )
        for key, pairs in by_key.items():
            values = drawn[key][1:]
            run[key] = Measured(
                value=float(np.mean([ood_auroc(own, new) for own, new in pairs])),
                draws=values if len(values) else None,
            )
    return run


def _weighted_means(
    by_key: Mapping[Key, Pairs], counts_in: np.ndarray, counts_out: np.ndarray
) -> dict[Key, np.ndarray]:
    """Return the mean AUROC (B,) over predictors on drawn samples."""
    return {
        key: np.mean([weighted_auroc(counts_in, counts_out, *one) for one in pairs], 0)
        for key, pairs in by_key.items()
    }


def as_ood_sets(ood: Any, X: Any) -> dict[str, Any]:
    """Return the out-of-distribution sets by name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"ood": ood}
    # A mapping with the keys of X is one set of samples, as X is.
    if isinstance(X, Mapping) and set(X) == set(ood):
        return {"ood": ood}
    sets = {str(name): samples for name, samples in ood.items()}
    if len(sets) < len(ood):
        raise InvalidInputError(
            f"Names of out-of-distribution sets must differ as text, got {list(ood)}."
        )
    return sets
