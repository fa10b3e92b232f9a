"""Sharpness, diversity and accuracy of ensembles, for plots of the trade-off."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.metrics._outputs import reach_last_step
from sklearn_sharpbalance.metrics.diversity import (
    disagreement,
    disagreement_error_ratio,
    ensemble_improvement_rate,
    kl_diversity,
    variance_diversity,
)
from sklearn_sharpbalance.metrics.flatness import adaptive_sharpness

# Label of the axis, and metric.
DIVERSITIES: dict[str, tuple[str, Callable]] = {
    "disagreement_error_ratio": (
        "Disagreement-error ratio (DER)",
        disagreement_error_ratio,
    ),
    "disagreement": ("Disagreement", disagreement),
    "variance_diversity": ("Variance of predictions", variance_diversity),
    "kl_diversity": ("KL divergence of predictions", kl_diversity),
}
GAINS = {
    "improvement": "Ensemble improvement rate (EIR)",
    "member_accuracy": "Accuracy of a member",
    "ensemble_accuracy": "Accuracy of the ensemble",
}


def sharpness_label(sharpness: Callable | None) -> str:
    """Return the label of the axis for a measure of sharpness."""
    if sharpness is None:
        return "Adaptive worst-case sharpness"
    name = getattr(sharpness, "__name__", "<lambda>")
    name = "sharpness" if name == "<lambda>" else name
    return name.replace("_", " ").capitalize()


def check_sharpness_options(options: Iterable[str]) -> None:
    """Raise for options that ``adaptive_sharpness`` does not take, before training."""
    known = set(signature(adaptive_sharpness).parameters)
    known -= {"net", "X", "y", "return_batches"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidInputError(
            f"adaptive_sharpness has no option {unknown[0]!r} to set here. Choose from "
            f"{', '.join(map(repr, sorted(known)))}."
        )


def mean_sharpness(
    estimator: Any, X: Any, y: Any, sharpness: Callable | None, random_state: Any
) -> float:
    """Return the mean sharpness of the members; None means adaptive sharpness."""
    estimator, X = reach_last_step(estimator, X)
    if sharpness is None:
        return adaptive_sharpness(estimator, X, y, random_state=random_state)
    return float(np.mean(sharpness(estimator, X, y)))


def diversity_of(
    name: str, y_true: Any, member_probas: Any, classes: Any = None
) -> float:
    """Return a measure of :data:`DIVERSITIES` for one ensemble."""
    measure = DIVERSITIES[name][1]
    if measure is disagreement_error_ratio:
        return measure(y_true, member_probas, labels=classes)
    return measure(member_probas)


def gain_of(
    name: str, y_true: Any, member_probas: Any, proba: Any, classes: Any = None
) -> float:
    """Return a measure of :data:`GAINS` for one ensemble."""
    probas, proba = np.asarray(member_probas), np.asarray(proba)
    if name == "improvement":
        return ensemble_improvement_rate(
            y_true, probas, ensemble_proba=proba, labels=classes
        )
    _, n_samples, n_classes = probas.shape
    codes = encode_labels(y_true, n_classes, n_samples, labels=classes)
    predictions = probas if name == "member_accuracy" else proba
    return float((predictions.argmax(-1) == codes).mean())
