"""The numbers of a trade-off figure: sharpness, diversity and colour of ensembles."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.plotting._ensembles import (
    check_ensemble,
    combine,
)

# Name of the axis, and whether the measure reads the labels.
DIVERSITIES = {
    "disagreement_error_ratio": ("Disagreement-error ratio (DER)", True),
    "disagreement": ("Disagreement", False),
    "variance_diversity": ("Variance of predictions", False),
    "kl_diversity": ("KL divergence of predictions", False),
}
COLOURS = {
    "improvement": "Ensemble improvement rate (EIR)",
    "member_accuracy": "Accuracy of a member",
    "ensemble_accuracy": "Accuracy of the ensemble",
}


def mean_sharpness(
    estimator: Any, X: Any, y: Any, sharpness: Callable | None, random_state: Any
) -> float:
    """Mean over the members of a sharpness measure."""
    check_ensemble(estimator, "classes_")
    if sharpness is None:
        return metrics.adaptive_sharpness(estimator, X, y, random_state=random_state)
    return float(np.mean(sharpness(estimator, X, y)))


def diversity_values(
    diversity: str | Callable,
    y_true: Any,
    member_probas: Sequence,
    classes: Any,
) -> tuple[str, np.ndarray]:
    """Name of the measure and its value for each ensemble."""
    if callable(diversity):
        name = getattr(diversity, "__name__", "diversity").replace("_", " ")
        return name.capitalize(), np.array([diversity(p) for p in member_probas])
    if diversity not in DIVERSITIES:
        raise InvalidInputError(
            f"Unknown diversity {diversity!r}. Choose one of "
            f"{', '.join(map(repr, DIVERSITIES))}, or pass a function of member_probas."
        )
    name, reads_labels = DIVERSITIES[diversity]
    measure = getattr(metrics, diversity)
    if reads_labels:
        values = [measure(y_true, p, labels=classes) for p in member_probas]
    else:
        values = [measure(p) for p in member_probas]
    return name, np.array(values)


def colour_values(
    color: str | None,
    y_true: Any,
    member_probas: Sequence,
    ensemble_probas: Sequence | None,
    classes: Any,
) -> tuple[str | None, np.ndarray | None]:
    """Name of what colours the points and its value for each ensemble."""
    if color is None:
        return None, None
    if color not in COLOURS:
        raise InvalidInputError(
            f"Unknown color {color!r}. Choose one of {', '.join(map(repr, COLOURS))}, "
            "or None."
        )
    if ensemble_probas is None:
        ensemble_probas = [combine(probas) for probas in member_probas]
    values = [
        _colour_value(color, y_true, np.asarray(probas), np.asarray(proba), classes)
        for probas, proba in zip(member_probas, ensemble_probas)
    ]
    return COLOURS[color], np.array(values)


def _colour_value(
    color: str, y_true: Any, probas: np.ndarray, proba: np.ndarray, classes: Any
) -> float:
    if color == "improvement":
        return metrics.ensemble_improvement_rate(
            y_true, probas, ensemble_proba=proba, labels=classes
        )
    codes = encode_labels(y_true, probas.shape[2], probas.shape[1], classes)
    predictions = probas if color == "member_accuracy" else proba
    return float((predictions.argmax(-1) == codes).mean())
