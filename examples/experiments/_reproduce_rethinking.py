"""Rethinking sharpness: four measures of it against what a net is wanted for.

Every member of an ensemble is a single net, too. Sharpness is measured on the first
training pictures, without augmentation for all controls, so that the controls differ in
the weights only.
"""

import numpy as np
from _reproduce_measure import measure
from scipy.special import softmax

from sklearn_sharpbalance import metrics

__all__ = ["OUTCOMES", "SHARPNESS", "measure_nets"]

# Names in the records, and headings.
SHARPNESS = {
    "fisher_rao": "Fisher-Rao norm",
    "sam_sharpness": "SAM-sharpness",
    "relative_flatness": "relative flatness",
    "worst_case": "worst-case sharpness",
}
OUTCOMES = {
    "accuracy": "clean accuracy",
    "corrupted_accuracy": "corrupted accuracy",
    "ece": "ECE",
    "disagreement": "disagreement",
}
N_SAMPLES = 5000


def measure_nets(clf, task, n_batches):
    """The record of an ensemble, with the values of each member as ``nets``."""
    X, y = task.X[:N_SAMPLES], task.y[:N_SAMPLES]
    each = {"random_state": 0, "per_member": True}
    nets = {
        "fisher_rao": metrics.fisher_rao_norm(clf, X, y, **each),
        "sam_sharpness": metrics.sam_sharpness(clf, X, y, **each),
        "relative_flatness": metrics.relative_flatness(clf, X, y, **each),
        "worst_case": metrics.adaptive_sharpness(
            clf, X, y, n_batches=n_batches, **each
        ),
        **outcomes(clf, task),
    }  # (M,) each
    record = measure(clf, task, n_batches)
    record |= {f"net_{name}": float(np.mean(values)) for name, values in nets.items()}
    return record | {"nets": {name: list(map(float, v)) for name, v in nets.items()}}


def outcomes(clf, task):
    """What each member is wanted for, (M,) each; disagreement with the other members."""
    logits = clf.member_decision_function(task.X_test)
    codes = np.searchsorted(clf.classes_, task.y_test)
    probas = softmax(logits.astype(np.float64), axis=-1)
    predictions = logits.argmax(-1)  # (M, N)
    pairs = np.array([(predictions != own).mean(axis=1) for own in predictions])
    corrupted = [
        clf.member_decision_function(images).argmax(-1)
        == np.searchsorted(clf.classes_, labels)
        for images, labels in task.corrupted.values()
    ]  # (M, N) each
    return {
        "accuracy": (logits.argmax(-1) == codes).mean(-1),
        "corrupted_accuracy": np.mean([right.mean(-1) for right in corrupted], axis=0),
        "ece": [metrics.expected_calibration_error(codes, each) for each in probas],
        "disagreement": pairs.sum(1) / max(len(pairs) - 1, 1),
    }
