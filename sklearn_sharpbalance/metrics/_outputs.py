"""Predictions of a fitted classifier and its members."""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.pipeline import Pipeline

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels


def last_step(estimator: Any) -> Any:
    """Return the final estimator of a pipeline, fitted or not."""
    while isinstance(estimator, Pipeline):
        estimator = estimator[-1]
    return estimator


def reach_last_step(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the final estimator of a pipeline, and the samples transformed for it.

    A fitted search is replaced by its best estimator.
    """
    while isinstance(estimator, Pipeline):
        if len(estimator) > 1:
            X = estimator[:-1].transform(X)
        estimator = estimator[-1]
    if hasattr(estimator, "best_estimator_"):
        return reach_last_step(estimator.best_estimator_, X)
    return estimator, X


class Outputs(NamedTuple):
    """Predictions of one classifier on one set of samples."""

    member_probas: np.ndarray  # (M, N, C); M is 1 for a classifier without members
    proba: np.ndarray  # (N, C)
    classes: np.ndarray  # (C,)
    is_lone: bool = False  # whether the classifier has no members

    def codes(self, y: Any) -> np.ndarray:
        """Return the column of each label, (N,)."""
        n_samples, n_classes = self.proba.shape
        return encode_labels(y, n_classes, n_samples, labels=self.classes, name="X")


def outputs_of(estimator: Any, X: Any) -> Outputs:
    """Return predictions of a fitted ensemble, classifier, pipeline or search."""
    estimator, X = reach_last_step(estimator, X)
    if not hasattr(estimator, "predict_proba") or not hasattr(estimator, "classes_"):
        raise InvalidInputError(
            f"{type(estimator).__name__} cannot be evaluated: it needs predict_proba "
            "and classes_. Fit it first, or wrap it in CalibratedClassifierCV if it "
            "has no probabilities."
        )
    classes = np.asarray(estimator.classes_)
    if predicts_with_members(estimator):
        logits = estimator.member_decision_function(X)  # (M, N, C)
        probas = softmax(logits.astype(np.float64), axis=-1)
        return Outputs(probas, estimator._aggregate(logits), classes)
    proba = np.asarray(estimator.predict_proba(X))
    if not hasattr(estimator, "member_predict_proba"):
        return Outputs(proba[None], proba, classes, is_lone=True)
    return Outputs(np.asarray(estimator.member_predict_proba(X)), proba, classes)


def predicts_with_members(estimator: Any) -> bool:
    """Return whether the ensemble's prediction is a function of its members' logits.

    Then one pass of each member is enough for both. It is not so for a soup.
    """
    if not hasattr(estimator, "_aggregate"):
        return False
    members = getattr(estimator, "heads_", getattr(estimator, "estimators_", []))
    predictors = getattr(estimator, "predictors_", None) or []
    same = len(members) == len(predictors) > 0
    return same and all(a is b for a, b in zip(members, predictors))
