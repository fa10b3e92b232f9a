"""Accuracy of ensembles and of their members on corrupted pictures."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sklearn_sharpbalance.corruption import iter_corruptions
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.plotting._ensembles import combine, member_probas_of


def measure(
    ensembles: Mapping[str, Any],
    X: Any,
    y: Any,
    corruptions: Iterable | None,
    severities: tuple[int, ...],
    random_state: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (K, S) of ensembles and of a member, mean over the kinds."""
    images, layout = _channels_last(X)
    shape = (len(ensembles), len(severities))
    of_ensemble, of_member = np.zeros(shape), np.zeros(shape)
    n_kinds = np.zeros(len(severities))
    for _, severity, corrupted in iter_corruptions(
        images, corruptions, severities, random_state
    ):
        s = severities.index(severity)
        n_kinds[s] += 1
        pictures = corrupted.transpose(0, 3, 1, 2) if layout == "first" else corrupted
        for k, estimator in enumerate(ensembles.values()):
            labels = np.asarray(estimator.classes_)
            codes = encode_labels(y, len(labels), len(pictures), labels)
            members = member_probas_of(estimator, pictures)  # (M, N, C)
            whole = np.asarray(estimator.predict_proba(pictures))  # (N, C)
            of_member[k, s] += (members.argmax(-1) == codes).mean()
            of_ensemble[k, s] += (whole.argmax(-1) == codes).mean()
    return of_ensemble / n_kinds, of_member / n_kinds


def _channels_last(X: Any) -> tuple[np.ndarray, str]:
    images = np.asarray(X)
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return images.transpose(0, 2, 3, 1), "first"
    return images, "last"


def accuracies(
    y_true: Any, member_probas: Any, classes: Any, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (S,) of an ensemble and of a member, from ([kinds,] S, M, N, C)."""
    probas = np.asarray(member_probas)
    if probas.ndim not in (4, 5):
        raise InvalidInputError(
            f"The probabilities of {name!r} must have shape (n_severities, n_members, "
            "n_samples, n_classes), or that with an axis of corruptions before it, got "
            f"{probas.shape}."
        )
    codes = encode_labels(y_true, probas.shape[-1], probas.shape[-2], classes)
    sets = probas.reshape(-1, *probas.shape[-3:])  # (kinds * S, M, N, C)
    whole = np.stack([combine(members) for members in sets])  # (kinds * S, N, C)
    by_set = (
        (whole.argmax(-1) == codes).mean(-1),
        (sets.argmax(-1) == codes).mean((-1, -2)),
    )
    n_severities = probas.shape[-4]
    ensemble, member = (v.reshape(-1, n_severities).mean(0) for v in by_set)
    return ensemble, member
