"""Checks of the arrays that metrics take: shapes, probabilities and labels."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError, UndefinedMetricWarning

# The largest error of the sum of a row of a float16 or float32 softmax.
SUM_TOLERANCE = 1e-3
MEMBERS = ("n_members", "n_samples", "n_classes")


def as_float(values: Any, name: str) -> np.ndarray:
    """Return ``values`` as float32 if they are float16 or float32, else as float64."""
    try:
        array = np.asarray(values)
        if array.dtype in (np.float32, np.float64):
            return array
        return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    except (RuntimeError, TypeError, ValueError) as error:  # of torch or numpy
        raise InvalidInputError(
            f"{name} must be an array of real numbers, got {type(values).__name__} "
            f"({error})."
        ) from error


def _check_shape(array: np.ndarray, name: str, axes: tuple[str, ...]) -> None:
    if array.ndim != len(axes):
        advice = f" For one predictor pass {name}[None]." if axes == MEMBERS else ""
        raise InvalidInputError(
            f"{name} must have shape ({', '.join(axes)}), got {array.shape}.{advice}"
        )
    if array.shape[-1] < 2:
        raise InvalidInputError(
            f"{name} must have a column for each of at least two classes, got shape "
            f"{array.shape}."
        )
    if 0 in array.shape:
        raise InvalidInputError(f"{name} is empty: it has shape {array.shape}.")


def _check_distribution(array: np.ndarray, name: str) -> None:
    """Raise if rows are not probabilities; a NaN fails each comparison."""
    low, high = array.min(), array.max()
    if not (low >= -SUM_TOLERANCE and high <= 1 + SUM_TOLERANCE):
        raise InvalidInputError(
            f"{name} must contain probabilities in [0, 1], got values from {low:.6g} "
            f"to {high:.6g}. Apply a softmax to logits first."
        )
    error = np.abs(array.sum(axis=-1) - 1).max()
    if error > SUM_TOLERANCE:
        raise InvalidInputError(
            f"The probabilities of the classes in {name} must sum to one, but the sum "
            f"of a row differs by {error:.6g}. Divide by the sum over the last axis."
        )


def _check_finite(array: np.ndarray, name: str) -> None:
    # NaN and infinities appear in the minimum or maximum: no temporary array.
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        raise InvalidInputError(f"{name} contains infinite values or NaN.")


def _checked(values: Any, name: str, axes: tuple, check: Callable) -> np.ndarray:
    array = as_float(values, name)
    _check_shape(array, name, axes)
    check(array, name)
    return array


def check_member_outputs(values: Any, name: str = "member_probas") -> np.ndarray:
    """Return finite outputs of the members, probabilities or logits, (M, N, C)."""
    return _checked(values, name, MEMBERS, _check_finite)


def check_outputs(values: Any, name: str) -> np.ndarray:
    """Return finite outputs of one predictor, probabilities or logits, (N, C)."""
    return _checked(values, name, MEMBERS[1:], _check_finite)


def check_member_probas(values: Any, name: str = "member_probas") -> np.ndarray:
    """Return probabilities of the members, (M, N, C)."""
    return _checked(values, name, MEMBERS, _check_distribution)


def check_proba(values: Any, name: str = "proba") -> np.ndarray:
    """Return probabilities of one predictor, (N, C); (N,) means the second class."""
    array = as_float(values, name)
    if array.ndim == 1:
        array = np.stack([1 - array, array], axis=1)  # (N, 2)
    return _checked(array, name, MEMBERS[1:], _check_distribution)


def check_weights(values: Any, n_samples: int) -> np.ndarray | None:
    """Return the sample weights as float64, (N,), or None."""
    if values is None:
        return None
    array = check_scores(values, "sample_weight").astype(np.float64)
    if len(array) != n_samples:
        raise InvalidInputError(
            f"sample_weight has {len(array)} entries for {n_samples} samples."
        )
    if array.min() < 0 or array.max() == 0:
        raise InvalidInputError(
            "sample_weight must not be negative, and at least one weight must be "
            f"positive; got values from {array.min():g} to {array.max():g}."
        )
    return array / array.max()  # so that sums of large weights do not overflow


def check_scores(values: Any, name: str) -> np.ndarray:
    """Return one finite number per sample, (N,)."""
    array = as_float(values, name)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidInputError(
            f"{name} must contain one number per sample, got shape {array.shape}."
        )
    _check_finite(array, name)
    return array


def encode_labels(
    y_true: Any,
    n_classes: int,
    n_samples: int,
    labels: Sequence | np.ndarray | None = None,
    name: str = "member_probas",
) -> np.ndarray:
    """Return the column of each label, (N,).

    Without ``labels``, ``y_true`` must contain the columns themselves.
    """
    y = np.asarray(y_true)
    if y.ndim != 1:
        raise InvalidInputError(f"y_true must have shape (n_samples,), got {y.shape}.")
    if len(y) != n_samples:
        raise InvalidInputError(
            f"y_true has {len(y)} samples but {name} has {n_samples}."
        )
    if labels is not None:
        return _columns_of(y, np.asarray(labels), n_classes, name)
    if y.dtype == object and all(isinstance(label, Real) for label in y):
        y = np.asarray(y.tolist())  # a column of a table of mixed types
    if not _are_codes(y, n_classes):
        found = list(dict.fromkeys(y.tolist()))[:6]
        raise InvalidInputError(
            f"y_true must contain class codes from 0 to {n_classes - 1}, the columns "
            f"of {name}, got {found}. For other labels pass labels=estimator.classes_."
        )
    return y.astype(np.int64)


def labels_and_members(
    y_true: Any, member_probas: Any, labels: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the column of each label (N,), and probabilities (M, N, C)."""
    probas = check_member_probas(member_probas)
    _, n_samples, n_classes = probas.shape
    return encode_labels(y_true, n_classes, n_samples, labels), probas


def labels_and_proba(
    y_true: Any, proba: Any, labels: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the column of each label (N,), and probabilities (N, C)."""
    array = check_proba(proba)
    n_samples, n_classes = array.shape
    return encode_labels(y_true, n_classes, n_samples, labels, name="proba"), array


def _are_codes(y: np.ndarray, n_classes: int) -> bool:
    if y.dtype.kind not in "biuf":
        return False
    return bool(y.min() >= 0 and y.max() < n_classes and (y == np.floor(y)).all())


def _columns_of(
    y: np.ndarray, labels: np.ndarray, n_classes: int, name: str
) -> np.ndarray:
    """Return the position of each entry of ``y`` in ``labels``, (N,)."""
    if labels.shape != (n_classes,) or len(set(labels.tolist())) != n_classes:
        raise InvalidInputError(
            f"labels must name each of the {n_classes} columns of {name} once, got "
            f"{labels.tolist()!r}."
        )
    try:
        order = np.argsort(labels)
        found = np.searchsorted(labels, y, sorter=order).clip(max=n_classes - 1)
    except TypeError as error:  # None or NaN between strings cannot be ordered
        raise InvalidInputError(
            f"y_true and labels cannot be compared ({error}). Remove samples without a "
            "label from y_true."
        ) from error
    codes = order[found]  # (N,)
    unknown = labels[codes] != y
    if unknown.any():
        raise InvalidInputError(
            f"y_true contains the label {y[unknown].tolist()[0]!r}, which is not in "
            f"labels: {labels.tolist()!r}."
        )
    return codes


def warn_undefined(message: str, depth: int = 1) -> None:
    """Warn at the caller of the metric, which is ``depth`` calls above this one."""
    warnings.warn(message, UndefinedMetricWarning, stacklevel=2 + depth)
