"""Validation samples that are held out of a fit, and means over them."""

from dataclasses import replace

import numpy as np
from sklearn.model_selection import train_test_split
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance.data.labels import check_weights, mean_one
from sklearn_sharpbalance.data.training_data import TrainingData, take_rows
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_held_out", "hold_out", "is_right", "rows_of", "weighted_mean"]


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
    return mean_one(weight)


def rows_of(data, rows) -> TrainingData:
    """Return some samples of training data, with their labels and weights."""
    if isinstance(data.X, Dataset):
        X = Subset(data.X, rows.tolist())
    else:
        X = take_rows(data.X, rows)
    weight = None if data.weight is None else data.weight[rows]
    shape = data.item_shape
    return TrainingData(X, data.y[rows], weight, rows=rows, item_shape=shape)


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
    """Raise unless there are validation samples of a weight above zero.

    Parameters
    ----------
    data : TrainingData
    who : str
        Start of the message: what needs the samples.
    """
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
