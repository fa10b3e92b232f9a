"""Numbers about ensembles that several displays need."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.ensemble.aggregation import AGGREGATIONS
from sklearn_sharpbalance.exceptions import InvalidInputError


def member_probas_of(estimator: Any, X: Any) -> np.ndarray:
    """Probabilities (M, N, C) of a fitted ensemble's members."""
    check_ensemble(estimator, "member_predict_proba")
    return np.asarray(estimator.member_predict_proba(X))


def module_inputs(estimator: Any, X: Any) -> Any:
    """Samples as the members' modules take them: validated, in their layout."""
    if hasattr(estimator, "_check_predict"):
        return estimator._check_predict(X)
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


def as_generator(random_state: Any) -> np.random.Generator:
    """A generator of its own, so that NumPy's global one is left alone."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return np.random.default_rng(random_state)


def combine(member_probas: np.ndarray, aggregation: Any = "mean_logit") -> np.ndarray:
    """Probabilities (N, C) of the ensemble, from those of its members (M, N, C)."""
    probas = np.asarray(member_probas, dtype=np.float64)
    logits = np.log(np.maximum(probas, np.finfo(np.float64).tiny))
    return AGGREGATIONS.resolve(aggregation).combine(logits)


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
