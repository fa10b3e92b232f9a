"""Samples held out of a fit: put aside, asked for, and averaged over."""

from dataclasses import replace

import numpy as np
from sklearn.model_selection import train_test_split
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance.data.sample_weights import check_weights, mean_one
from sklearn_sharpbalance.data.training_data import TrainingData, take_rows
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_held_out", "hold_out", "is_right", "rows_of", "weighted_mean"]


def hold_out(data, fraction, seed, sample_weight=None):
    """Put a stratified share of the samples aside for validation.

    These keep their ``sample_weight`` alone, without class weights, as scikit-learn
    has it: how classes are balanced for the loss does not change what is judged.
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
    judged = replace(data, weight=check_weights(None, data.y, sample_weight, None))
    left, valid = rows_of(data, np.sort(kept)), rows_of(judged, np.sort(held))
    return replace(left, weight=_weight_of_part(left.weight), valid=valid)


def _weight_of_part(weight):
    """Weights of the part that is left, which need not have their mean any more."""
    if weight is None:
        return None
    if not weight.any():
        raise InvalidInputError(
            "The samples that are left when those of validation_fraction are held out "
            "all have weight zero. Lower validation_fraction, or give more samples a "
            "weight."
        )
    return mean_one(weight)


def rows_of(data, rows) -> TrainingData:
    """Some samples of training data, with their labels and weights."""
    if isinstance(data.X, Dataset):
        X = Subset(data.X, rows.tolist())
    else:
        X = take_rows(data.X, rows)
    weight = None if data.weight is None else data.weight[rows]
    shape = data.item_shape
    return TrainingData(X, data.y[rows], weight, rows=rows, item_shape=shape)


def weighted_mean(values: np.ndarray, valid: TrainingData) -> float:
    """Mean over the held-out samples, each by its sample weight."""
    weight = None if valid.weight is None else valid.weight.astype(np.float64)
    return float(np.average(values, weights=weight))


def is_right(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the highest score (N, C) of each sample is that of its class.

    Never where there is none, as in a row of NaN, for which argmax names a class.
    """
    return (scores.argmax(axis=1) == y) & np.isfinite(scores.max(axis=1))


def check_held_out(data: TrainingData, who: str) -> None:
    """Raise unless there are held-out samples, and they have some weight.

    Parameters
    ----------
    data : TrainingData
    who : str
        How the message begins: who judges by them.
    """
    if data.valid is None:
        raise InvalidInputError(
            f"{who} held-out samples, got validation_fraction=None. Training samples "
            "are not accepted in their place: members know them by heart. Pass for "
            "example validation_fraction=0.1."
        )
    weight = data.valid.weight
    if weight is not None and not weight.any():
        raise InvalidInputError(
            f"{who} held-out samples, by their sample weights, but all {len(weight)} "
            "have weight zero. Raise validation_fraction, or give more of them a "
            "weight."
        )
