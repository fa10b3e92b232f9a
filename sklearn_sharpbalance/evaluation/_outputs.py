"""What a fitted classifier and its members predict, with as few passes as can be."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from torch.utils.data import Dataset

from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics.scorers import last_step

__all__ = ["Outputs", "as_methods", "check_arrays", "outputs_of", "probas_of"]


class Outputs(NamedTuple):
    """Predictions of one classifier on one set of samples."""

    member_probas: np.ndarray  # (M, N, C); a lone classifier is its only member
    proba: np.ndarray  # (N, C)
    member_logits: np.ndarray | None  # (M, N, C), where the classifier has them
    classes: np.ndarray  # (C,)

    def codes(self, y: Any) -> np.ndarray:
        """Column of each label, (N,)."""
        n_samples, n_classes = self.proba.shape
        return encode_labels(y, n_classes, n_samples, self.classes, "X")


def outputs_of(estimator: Any, X: Any) -> Outputs:
    """Predictions of a fitted ensemble, classifier, pipeline or finished search."""
    estimator, X = last_step(estimator, X)
    if not hasattr(estimator, "predict_proba") or not hasattr(estimator, "classes_"):
        raise InvalidInputError(
            f"{type(estimator).__name__} cannot be evaluated: it needs predict_proba "
            "and, from a fit, classes_. Fit it first, or wrap it in "
            "CalibratedClassifierCV if it has no probabilities."
        )
    classes = np.asarray(estimator.classes_)
    if _predicts_with_members(estimator):
        logits = estimator.member_decision_function(X)  # (M, N, C)
        probas = softmax(logits.astype(np.float64), axis=-1)
        return Outputs(probas, estimator._aggregate(logits), logits, classes)
    proba = np.asarray(estimator.predict_proba(X))
    if not hasattr(estimator, "member_predict_proba"):
        return Outputs(proba[None], proba, None, classes)
    probas = np.asarray(estimator.member_predict_proba(X))
    logits = None
    if hasattr(estimator, "member_decision_function"):
        logits = np.asarray(estimator.member_decision_function(X))
    return Outputs(probas, proba, logits, classes)


def probas_of(estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of members and ensemble, and the classes."""
    outputs = outputs_of(estimator, X)
    return outputs.member_probas, outputs.proba, outputs.classes


def _predicts_with_members(estimator: Any) -> bool:
    """Whether the ensemble's prediction is a function of its members' logits.

    A soup's is not. Where it is, one pass of each member serves both.
    """
    if not isinstance(estimator, BaseDeepEnsemble):
        return False
    members = getattr(estimator, "heads_", getattr(estimator, "estimators_", []))
    predictors = getattr(estimator, "predictors_", None) or []
    same = len(members) == len(predictors) > 0
    return same and all(a is b for a, b in zip(members, predictors))


def as_methods(estimators: Any) -> dict[str, list[Any]]:
    """Names of methods and the classifiers (one per seed) of each.

    A single one and those of a list are named by their class, with a number where
    that is not unique.
    """
    if isinstance(estimators, Mapping):
        methods = {str(name): _as_list(runs) for name, runs in estimators.items()}
    else:
        runs = _as_list(estimators)
        kinds = [type(last_step_of(e)).__name__ for e in runs]
        names = [
            kind if kinds.count(kind) == 1 else f"{kind} {kinds[: i + 1].count(kind)}"
            for i, kind in enumerate(kinds)
        ]
        methods = {name: [run] for name, run in zip(names, runs)}
    empty = [name for name, runs in methods.items() if not runs]
    if not methods or empty:
        raise InvalidInputError(
            "There is nothing to evaluate"
            + (f" for {empty[0]!r}" if empty else "")
            + ". Pass a fitted classifier, a list of them, or a dictionary of names to "
            "one or a list."
        )
    return methods


def last_step_of(estimator: Any) -> Any:
    """The final estimator of pipelines, without samples to transform."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def _as_list(runs: Any) -> list[Any]:
    return list(runs) if isinstance(runs, (list, tuple)) else [runs]


def check_arrays(X: Any, what: str) -> None:
    """Only arrays can be corrupted or cut into folds."""
    if isinstance(X, Mapping | Dataset):
        raise InvalidInputError(
            f"{what} works on arrays and DataFrames, got {type(X).__name__}."
        )
