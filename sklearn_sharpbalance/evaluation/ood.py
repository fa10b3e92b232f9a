"""Detect samples of another distribution than the training data's."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from sklearn_sharpbalance.evaluation._measures import Key, Measured, Run
from sklearn_sharpbalance.evaluation._resampling import Draws, weighted_auroc
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import Outputs, outputs_of
from sklearn_sharpbalance.metrics.ood import (
    SCORE_NAMES,
    check_score_names,
    ensemble_scores,
    member_scores,
    ood_auroc,
)

__all__ = ["as_ood_sets", "measure_ood", "ood_evaluation"]


def ood_evaluation(estimator, X_in, X_out, scores=None):
    """Measure how well an ensemble detects out-of-distribution samples.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package, or any classifier. Other classifiers only have
        the scores of one prediction.
    X_in : array-like
        Samples of the training distribution, not used in training.
    X_out : array-like
        Out-of-distribution samples, in the same layout.
    scores : iterable of str or None, default=None
        Keys of :data:`~sklearn_sharpbalance.metrics.OOD_SCORES`. None takes those of
        "msp", "entropy", "mutual_information" and "pds" that the classifier has (the
        last two need several members).

    Returns
    -------
    auroc : DataFrame
        Area under the ROC curve, with a row for each score and the columns
        ``ensemble`` and ``members`` (NaN for a score that compares members).

    Notes
    -----
    For the ensemble, "msp" and "entropy" are computed from its own prediction. If it
    averages probabilities, "msp" equals "bma". The value for the members is the mean
    over the members' own values.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_sharpbalance.evaluation import ood_evaluation
    >>> X, y = load_iris(return_X_y=True)
    >>> known = y < 2
    >>> clf = LogisticRegression().fit(X[known], y[known])
    >>> ood_evaluation(clf, X[known], X[~known]).index.tolist()
    ['msp', 'entropy']
    """
    inside, outside = outputs_of(estimator, X_in), outputs_of(estimator, X_out)
    names = check_score_names(scores, inside, type(estimator).__name__)
    parts = [_pairs(name, inside, outside) for name in names]
    return pd.DataFrame(
        {
            part: [_mean_auroc(pairs[part]) for pairs in parts]
            for part in ("ensemble", "members")
        },
        index=pd.Index(names, name="score"),
    )


# Scores of known and of out-of-distribution samples by the same predictor.
Pairs = list[tuple[np.ndarray, np.ndarray]]


def _pairs(score: str, inside: Outputs, outside: Outputs) -> dict[str, Pairs]:
    """Return the scores of the ensemble and those of each member."""
    whole = ensemble_scores(score, inside), ensemble_scores(score, outside)
    members = zip(member_scores(score, inside), member_scores(score, outside))
    return {"ensemble": [whole], "members": list(members)}


def _mean_auroc(pairs: Pairs) -> float:
    areas = [ood_auroc(known, foreign) for known, foreign in pairs]
    return float(np.mean(areas)) if areas else np.nan


def measure_ood(
    inside: Outputs, outside: Mapping[str, Outputs], draws: Draws, stream: int = 0
) -> Run:
    """Measure the AUROC of every score for every set, with bootstrap draws.

    A draw takes both known and out-of-distribution samples.
    """
    run: Run = {}
    for number, (set_name, out) in enumerate(outside.items()):
        by_key: dict[Key, Pairs] = {}
        for score in check_score_names(None, inside, ""):
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
            run[key] = Measured(_mean_auroc(pairs), values if len(values) else None)
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
