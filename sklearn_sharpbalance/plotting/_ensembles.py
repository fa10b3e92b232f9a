"""Numbers about ensembles that several displays need."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step, reach_last_step


def member_probas_of(estimator: Any, X: Any) -> np.ndarray:
    """Probabilities (M, N, C) of the members of a fitted ensemble.

    It may stand at the end of a pipeline, or be what a search has found.
    """
    estimator, X = reach_last_step(estimator, X)
    check_ensemble(estimator, "member_predict_proba")
    return np.asarray(estimator.member_predict_proba(X))


def found_estimator(estimator: Any) -> Any:
    """The fitted estimator at the end of a pipeline, or that a search has found."""
    estimator = last_step(estimator)
    best = getattr(estimator, "best_estimator_", None)
    return estimator if best is None else found_estimator(best)


def module_inputs(estimator: Any, X: Any) -> Any:
    """Samples as the members' modules take them: validated, in their layout."""
    if hasattr(estimator, "member_inputs"):
        return estimator.member_inputs(X)
    array = np.asarray(X)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def check_ensemble(estimator: Any, attribute: str) -> None:
    """A fitted ensemble that has what the display reads."""
    check_is_fitted(estimator, "estimators_")
    if not hasattr(estimator, attribute):
        raise InvalidInputError(
            f"{type(estimator).__name__} has no {attribute!r}, which this display "
            "reads. Pass a fitted ensemble of this package."
        )


def member_subsets(
    n_members: int, size: int, max_subsets: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """All subsets of one size, or ``max_subsets`` different ones drawn at random."""
    if comb(n_members, size) <= max_subsets:
        return list(combinations(range(n_members), size))
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < max_subsets:
        drawn.add(tuple(sorted(rng.permutation(n_members)[:size].tolist())))
    return sorted(drawn)
