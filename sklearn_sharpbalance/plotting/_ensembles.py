"""Access to the estimator inside pipelines and searches, for the displays."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step, reach_last_step


def member_probas_of(estimator: Any, X: Any) -> np.ndarray:
    """Return the probabilities (M, N, C) of the members of a fitted ensemble.

    The ensemble may be the last step of a pipeline, or the best estimator of a search.
    """
    estimator, X = reach_last_step(estimator, X)
    check_ensemble(estimator, "member_predict_proba")
    return np.asarray(estimator.member_predict_proba(X))


def found_estimator(estimator: Any) -> Any:
    """Return the last step of a pipeline, or the best estimator of a search."""
    estimator = last_step(estimator)
    best = getattr(estimator, "best_estimator_", None)
    return estimator if best is None else found_estimator(best)


def module_inputs(estimator: Any, X: Any) -> Any:
    """Return samples as the members' modules accept them: validated, in layout."""
    if hasattr(estimator, "member_inputs"):
        return estimator.member_inputs(X)
    array = np.asarray(X)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def check_ensemble(estimator: Any, attribute: str) -> None:
    """Raise if an estimator is not a fitted ensemble with the attribute."""
    check_is_fitted(estimator, "estimators_")
    if not hasattr(estimator, attribute):
        raise InvalidInputError(
            f"{type(estimator).__name__} has no {attribute!r}, which this display "
            "needs. Pass a fitted ensemble of this package."
        )
