"""Labels, sample weights and class weights of a fit, and its validation samples."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.utils import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch.utils.data import Dataset

from sklearn_sharpbalance._validation import check_sample_weight, in_a_sentence
from sklearn_sharpbalance.arrays import dataset_labels, to_array
from sklearn_sharpbalance.data.columns import is_missing
from sklearn_sharpbalance.data.inputs import as_array, check_unmasked
from sklearn_sharpbalance.data.loading import NamedItems
from sklearn_sharpbalance.data.training_data import (
    SlicedItems,
    TrainingData,
    check_countable,
    n_rows,
    rows_of,
)
from sklearn_sharpbalance.datasets import Stream
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "check_held_out",
    "check_weights",
    "check_y",
    "hold_out",
    "is_right",
    "weighted_mean",
]


def check_y(X, y, classes=None):
    """Return the classes (C,), and the labels (N,) as class codes of int64.

    ``classes`` are all classes; None takes those in ``y``.
    """
    if isinstance(X, Stream):
        classes, y = X.classes, np.resize(X.classes, len(X))  # until items are read
    elif isinstance(X, Dataset):
        check_countable(X)
        if y is None and not isinstance(X, SlicedItems):
            y = dataset_labels(NamedItems(X))
    if y is None:
        raise InvalidInputError(
            "requires y to be passed, but the target y is None. Pass the labels."
        )
    y = _as_labels(y)
    n_samples = n_rows(X)
    if len(y) != n_samples:
        raise InvalidInputError(
            "Found input variables with inconsistent numbers of samples: X has "
            f"{n_samples}, y has {len(y)}."
        )
    _check_missing(y)
    try:
        if _has_text_and_others(y):
            raise TypeError("text and other labels have no common order")
        check_classification_targets(y)
        found, codes = np.unique(y, return_inverse=True)
    except TypeError as error:
        types = sorted({type(label).__name__ for label in y})
        raise InvalidInputError(
            f"y contains labels of type {', '.join(types)} ({y.dtype}), which have no "
            "common order. Use strings or integers, such as y.astype(str)."
        ) from error
    classes = found if classes is None else np.unique(classes)
    unknown = np.setdiff1d(found, classes)
    if len(unknown):
        raise InvalidInputError(
            f"y contains labels {unknown[:5].tolist()} that are not among the classes "
            f"{classes[:10].tolist()}. Pass all classes in the first call."
        )
    codes = np.searchsorted(classes, found)[codes]
    if len(classes) < 2:
        raise InvalidInputError(
            f"A classifier needs samples of at least 2 classes, but y contains one "
            f"class: {classes[0]!r}."
        )
    return classes, codes.astype(np.int64)


def _as_labels(y):
    """Return y as an array of shape (N,); raise on several labels per sample."""
    y = as_array(y) if torch.is_tensor(y) else y
    check_unmasked(y, "y")
    if isinstance(y, list | tuple) and _has_text_and_others(y):
        y = np.array(y, dtype=object)  # numpy would turn numbers into text
    try:
        return column_or_1d(y, warn=True)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"y must contain one label per sample: {in_a_sentence(error)}. For several "
            "labels per sample fit one ensemble for each of them, by "
            "sklearn.multioutput.MultiOutputClassifier(ensemble). For one-hot rows "
            "pass y.argmax(axis=1)."
        ) from error


def _has_text_and_others(labels):
    return len({isinstance(label, str) for label in labels}) > 1


def _check_missing(y):
    """Raise if labels are missing: None, NaN, or NA of pandas."""
    if y.dtype.kind == "f":
        missing = ~np.isfinite(y)
        text = "Input y contains NaN or infinity"
    elif y.dtype == object:
        missing = np.array([is_missing(label) for label in y], dtype=bool)
        text = "Labels are missing"
    else:
        return
    if missing.any():
        raise InvalidInputError(
            f"{text}: y has no label for {missing.sum()} of {len(y)} samples, first in "
            f"row {missing.argmax()}. Remove these samples from X and y."
        )


def check_weights(classes, codes, sample_weight, class_weight):
    """Return the weight of each sample with mean one, or None without weights.

    ``classes`` are the labels of the user, the keys of ``class_weight``; ``codes`` may
    lack some of them.
    """
    if sample_weight is None and class_weight is None:
        return None
    if torch.is_tensor(sample_weight):
        sample_weight = to_array(sample_weight.cpu().double())
    check_unmasked(sample_weight, "sample_weight")
    weight = check_sample_weight(sample_weight, codes)
    if isinstance(class_weight, Mapping):
        _check_class_weight(class_weight)
        by_class = compute_class_weight(class_weight, classes=classes, y=classes)
        weight = weight * by_class[codes]
    elif class_weight is not None:
        weight = weight * compute_sample_weight(class_weight, codes)
    with np.errstate(over="ignore"):
        total = weight.sum()
    if total <= 0:
        source = "Sample weights" if class_weight is None else "Weights by class_weight"
        raise InvalidInputError(
            f"{source} must contain at least one non-zero number, got only zeros."
        )
    if not np.isfinite(total):
        raise InvalidInputError(
            f"The sum of the weights of all samples is too large for a float: the "
            f"largest is {weight.max():.3g}. Scale them down; only ratios matter."
        )
    return _mean_one(weight)


def _mean_one(weight):
    """Return weights as float32 with mean one, to keep the effective learning rate."""
    return (weight / weight.mean(dtype=np.float64)).astype(np.float32)


def _check_class_weight(class_weight):
    """Raise unless all class weights are finite numbers >= 0."""
    for label, value in class_weight.items():
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise InvalidInputError(
                "class_weight must give each class a finite number >= 0, got "
                f"{value!r} for the class {label!r}."
            )


def hold_out(data, fraction, seed, sample_weight=None):
    """Split off a stratified fraction of the samples for validation.

    As in scikit-learn, validation samples are weighted by ``sample_weight`` only:
    class weights balance the loss and do not enter the validation score.
    """
    rows = np.arange(len(data))
    if fraction is None:
        return replace(data, rows=rows)
    try:
        kept, held = train_test_split(
            rows, test_size=float(fraction), stratify=data.y, random_state=seed
        )
    except ValueError as error:
        raise InvalidInputError(
            f"validation_fraction={fraction} cannot be held out of {len(data)} samples "
            f"in {data.y.max() + 1} classes: {error}"
        ) from error
    own_weight = check_weights(
        classes=None, codes=data.y, sample_weight=sample_weight, class_weight=None
    )
    valid = rows_of(replace(data, weight=own_weight), np.sort(held))
    train = rows_of(data, np.sort(kept))
    return replace(train, weight=_training_weight(train.weight), valid=valid)


def _training_weight(weight):
    """Return the weights of the training samples with mean one again."""
    if weight is None:
        return None
    if not weight.any():
        raise InvalidInputError(
            "The training samples that are left after validation_fraction all have "
            "weight zero. Lower validation_fraction, or give more samples a weight."
        )
    return _mean_one(weight)


def weighted_mean(values: np.ndarray, valid: TrainingData) -> float:
    """Return the mean over the validation samples, weighted by their sample weights."""
    weight = None if valid.weight is None else valid.weight.astype(np.float64)
    return float(np.average(values, weights=weight))


def is_right(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the highest score (N, C) of each sample is that of its class.

    False for a row with NaN, for which argmax returns a class, too.
    """
    return (scores.argmax(axis=1) == y) & np.isfinite(scores.max(axis=1))


def check_held_out(data: TrainingData, who: str) -> None:
    """Raise that ``who`` needs validation samples of a weight above zero."""
    if data.valid is None:
        raise InvalidInputError(
            f"{who} validation samples, got validation_fraction=None. Training samples "
            "cannot replace them, since members are fitted to these. Pass for example "
            "validation_fraction=0.1."
        )
    weight = data.valid.weight
    if weight is not None and not weight.any():
        raise InvalidInputError(
            f"{who} validation samples with sample weights above zero, but all "
            f"{len(weight)} have weight zero. Raise validation_fraction, or give more "
            "samples a weight."
        )
