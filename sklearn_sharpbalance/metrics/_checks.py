"""What metrics ask of their input: shapes, probabilities, label codes, seeds."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError, UndefinedMetricWarning

__all__ = [
    "as_float",
    "as_generator",
    "check_lengths",
    "check_member_outputs",
    "check_member_probas",
    "check_outputs",
    "check_proba",
    "check_scores",
    "encode_labels",
    "top1",
    "undefined_once",
    "warn_undefined",
]

# Rows of a float16 or float32 softmax miss one by about this much at worst.
SUM_TOLERANCE = 1e-3


def as_float(values: Any, name: str) -> np.ndarray:
    """``values`` as float32 if they were at most that precise, else as float64."""
    try:
        array = np.asarray(values)
        if array.dtype in (np.float32, np.float64):
            return array
        return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    except (RuntimeError, TypeError, ValueError) as error:  # torch's, numpy's
        raise InvalidInputError(
            f"{name} must be an array of real numbers, got {type(values).__name__} "
            f"({error})."
        ) from error


def _check_shape(array: np.ndarray, name: str, shape: str, ndim: int) -> None:
    if array.ndim != ndim:
        raise InvalidInputError(
            f"{name} must have shape {shape}, got {array.shape}."
            + (f" For one predictor pass {name}[None]." if ndim == 3 else "")
        )
    if array.shape[-1] < 2:
        raise InvalidInputError(
            f"{name} must have a column for each of at least two classes, got shape "
            f"{array.shape}."
        )
    if 0 in array.shape:
        raise InvalidInputError(f"{name} is empty: it has shape {array.shape}.")


def _check_distribution(array: np.ndarray, name: str) -> None:
    """Refuse rows that are not probabilities; NaN fails each comparison."""
    low, high = array.min(), array.max()
    if not (low >= -SUM_TOLERANCE and high <= 1 + SUM_TOLERANCE):
        raise InvalidInputError(
            f"{name} must hold probabilities in [0, 1], got values from {low:.6g} to "
            f"{high:.6g}. Pass logits through a softmax first."
        )
    miss = np.abs(array.sum(axis=-1) - 1).max()
    if miss > SUM_TOLERANCE:
        raise InvalidInputError(
            f"The classes' probabilities in {name} must sum to one, but a row misses "
            f"it by {miss:.6g}. Divide by the sum over the last axis."
        )


def _check_finite(array: np.ndarray, name: str) -> None:
    # Two scans without a temporary: NaN and infinities both end up in min or max.
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        raise InvalidInputError(f"{name} holds infinite values or NaN.")


def check_member_outputs(values: Any, name: str = "member_probas") -> np.ndarray:
    """Finite outputs of the members, probabilities or logits, as (M, N, C)."""
    array = as_float(values, name)
    _check_shape(array, name, "(n_members, n_samples, n_classes)", 3)
    _check_finite(array, name)
    return array


def check_outputs(values: Any, name: str = "logits") -> np.ndarray:
    """Finite outputs of one predictor, probabilities or logits, as (N, C)."""
    array = as_float(values, name)
    _check_shape(array, name, "(n_samples, n_classes)", 2)
    _check_finite(array, name)
    return array


def check_member_probas(values: Any, name: str = "member_probas") -> np.ndarray:
    """Probabilities of the members, as (M, N, C)."""
    array = as_float(values, name)
    _check_shape(array, name, "(n_members, n_samples, n_classes)", 3)
    _check_distribution(array, name)
    return array


def check_proba(values: Any, name: str = "proba") -> np.ndarray:
    """Probabilities of one predictor, as (N, C); (N,) is the second of two classes."""
    array = as_float(values, name)
    if array.ndim == 1:
        array = np.stack([1 - array, array], axis=1)  # (N, 2)
    _check_shape(array, name, "(n_samples, n_classes)", 2)
    _check_distribution(array, name)
    return array


def check_weights(values: Any, n_samples: int) -> np.ndarray | None:
    """Weights of the samples, as (N,) float64; None where there are none."""
    if values is None:
        return None
    array = check_scores(values, "sample_weight").astype(np.float64)
    if len(array) != n_samples:
        raise InvalidInputError(
            f"sample_weight has {len(array)} entries for {n_samples} samples."
        )
    if array.min() < 0 or array.max() == 0:
        raise InvalidInputError(
            "sample_weight must not be negative, and somewhere more than zero; got "
            f"values from {array.min():g} to {array.max():g}."
        )
    return array / array.max()  # sums of large weights must not overflow


def check_scores(values: Any, name: str) -> np.ndarray:
    """One finite number per sample, as (N,)."""
    array = as_float(values, name)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidInputError(
            f"{name} must hold one number per sample, got shape {array.shape}."
        )
    _check_finite(array, name)
    return array


def check_lengths(n_labels: int, n_rows: int, name: str) -> None:
    """Refuse labels and predictions of different samples."""
    if n_labels != n_rows:
        raise InvalidInputError(
            f"y_true has {n_labels} samples but {name} has {n_rows}."
        )


def encode_labels(
    y_true: Any,
    n_classes: int,
    n_samples: int,
    labels: Sequence | np.ndarray | None = None,
    name: str = "member_probas",
) -> np.ndarray:
    """Column of each label, as (N,) integers.

    Without ``labels``, ``y_true`` must hold the columns themselves.
    """
    y = np.asarray(y_true)
    if y.ndim != 1:
        raise InvalidInputError(f"y_true must have shape (n_samples,), got {y.shape}.")
    check_lengths(len(y), n_samples, name)
    if labels is not None:
        return _columns_of(y, np.asarray(labels), n_classes, name)
    if y.dtype == object and all(isinstance(label, Real) for label in y):
        y = np.asarray(y.tolist())  # a column out of a table of mixed ones
    if not _are_codes(y, n_classes):
        found = list(dict.fromkeys(y.tolist()))[:6]
        raise InvalidInputError(
            f"y_true must hold class codes from 0 to {n_classes - 1}, one for each "
            f"column of {name}, got {found}. For other labels pass "
            "labels=estimator.classes_."
        )
    return y.astype(np.int64)


def _are_codes(y: np.ndarray, n_classes: int) -> bool:
    if y.dtype.kind not in "biuf":
        return False
    return bool(y.min() >= 0 and y.max() < n_classes and (y == np.floor(y)).all())


def _columns_of(
    y: np.ndarray, labels: np.ndarray, n_classes: int, name: str
) -> np.ndarray:
    if labels.shape != (n_classes,) or len(set(labels.tolist())) != n_classes:
        raise InvalidInputError(
            f"labels must name each of the {n_classes} columns of {name} once, got "
            f"{labels.tolist()!r}."
        )
    try:
        order = np.argsort(labels)
        found = np.searchsorted(labels, y, sorter=order).clip(max=n_classes - 1)
    except TypeError as error:  # None or NaN among strings, which have no order
        raise InvalidInputError(
            f"y_true and labels cannot be compared ({error}). Are labels missing in "
            "y_true? Leave their samples out."
        ) from error
    codes = order[found]  # (N,)
    unknown = labels[codes] != y
    if unknown.any():
        raise InvalidInputError(
            f"y_true holds the label {y[unknown].tolist()[0]!r}, which is not among "
            f"labels: {labels.tolist()!r}."
        )
    return codes


def top1(member_probas: np.ndarray) -> np.ndarray:
    """Predicted column of each member and sample, (M, N); ties go to the first."""
    return member_probas.argmax(axis=-1)


_GATHERED: ContextVar[dict[str, None] | None] = ContextVar("gathered", default=None)


def warn_undefined(message: str, depth: int = 1) -> None:
    """Warn at the caller of the metric, which is ``depth`` calls above this one."""
    gathered = _GATHERED.get()
    if gathered is None:
        warnings.warn(message, UndefinedMetricWarning, stacklevel=2 + depth)
    else:
        gathered[message] = None


@contextmanager
def undefined_once() -> Iterator[None]:
    """Decorates what computes many metrics: it warns of each fault once, at its caller.

    A filter of warnings would be one for all threads.
    """
    token = _GATHERED.set({})
    try:
        yield
        gathered = _GATHERED.get() or {}
    finally:
        _GATHERED.reset(token)
    for message in gathered:
        warnings.warn(message, UndefinedMetricWarning, stacklevel=4)


def as_generator(random_state: Any) -> np.random.Generator:
    """A generator of its own, so that NumPy's global one is left alone."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    if random_state is None or isinstance(random_state, Integral):
        return np.random.default_rng(
            None if random_state is None else int(random_state)
        )
    raise InvalidInputError(
        "random_state must be None, an integer, a Generator or a RandomState, got "
        f"{random_state!r}."
    )
