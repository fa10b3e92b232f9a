"""What trainings of several methods share: seeds, clones and rows of samples."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance.data.training_data import take_rows
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["as_seeds", "seeded", "take"]


def as_seeds(seeds: Any, random_state: int) -> list[int]:
    """Seeds by their number, or as they were given."""
    if isinstance(seeds, Integral):
        if seeds < 1:
            raise InvalidInputError(f"seeds must be at least 1, got {seeds!r}.")
        rng = np.random.default_rng([random_state, 1])
        return rng.integers(2**31 - 1, size=int(seeds)).tolist()
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise InvalidInputError("seeds is empty. Pass a number, or some seeds.")
    return seeds


def seeded(estimator: Any, seed: int) -> Any:
    """A clone with every ``random_state`` in it set."""
    estimator = clone(estimator)
    names = [
        name
        for name in estimator.get_params(deep=True)
        if name == "random_state" or name.endswith("__random_state")
    ]
    return estimator.set_params(**dict.fromkeys(names, seed))


def take(X: Any, rows: np.ndarray) -> Any:
    """Some rows of samples, of the same type."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if isinstance(X, Dataset):
        return Subset(X, rows.tolist())
    if hasattr(X, "with_columns"):  # of polars
        return X[rows]
    return take_rows(X if isinstance(X, Mapping) else np.asarray(X), rows)
