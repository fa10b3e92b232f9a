"""Validation of sample weights and class weights."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from sklearn.utils import compute_class_weight, compute_sample_weight

from sklearn_sharpbalance._validation import check_sample_weight
from sklearn_sharpbalance.arrays import to_array
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_weights", "mean_one"]


def check_weights(classes, codes, sample_weight, class_weight):
    """Return the weight of each sample with mean one, or None without weights.

    Parameters
    ----------
    classes : ndarray of shape (C,) or None
        Labels of the user, the keys of ``class_weight``.
    codes : ndarray of shape (N,)
        Class code of each sample; some classes may have no samples.
    sample_weight : array-like of shape (N,) or None
    class_weight : dict, "balanced" or None
    """
    if sample_weight is None and class_weight is None:
        return None
    if torch.is_tensor(sample_weight):
        sample_weight = to_array(sample_weight.cpu().double())
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
    return mean_one(weight)


def mean_one(weight):
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
