"""Check and prepare the input of evaluations: classifiers, seeds and samples."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance._validation import check_seed
from sklearn_sharpbalance.data.training_data import take_rows
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step

__all__ = [
    "as_methods",
    "as_seed",
    "as_seeds",
    "check_arrays",
    "check_same_features",
    "clone_with_seed",
    "take",
]


def as_methods(estimators: Any) -> dict[str, list[Any]]:
    """Return the classifiers of each method by the method's name.

    A single classifier and those of a list are named by their class, with a number if
    several have the same class.
    """
    if isinstance(estimators, Mapping):
        methods = {str(name): _as_list(runs) for name, runs in estimators.items()}
        if len(methods) < len(estimators):
            raise InvalidInputError(
                "Names of methods must differ as text, got "
                f"{', '.join(map(repr, estimators))}."
            )
    else:
        runs = _as_list(estimators)
        kinds = [type(last_step(e)).__name__ for e in runs]
        names = [
            kind if kinds.count(kind) == 1 else f"{kind} {kinds[: i + 1].count(kind)}"
            for i, kind in enumerate(kinds)
        ]
        methods = {name: [run] for name, run in zip(names, runs)}
    empty = [name for name, runs in methods.items() if not runs]
    if not methods or empty:
        of_method = f" for {empty[0]!r}" if empty else ""
        raise InvalidInputError(
            f"There is nothing to evaluate{of_method}. Pass a fitted classifier, a "
            "list of them, or a dictionary of names to one or a list."
        )
    return methods


def _as_list(runs: Any) -> list[Any]:
    return list(runs) if isinstance(runs, (list, tuple)) else [runs]


def as_seed(random_state: Any) -> int:
    """Return a seed that every generator accepts, from any random state."""
    return check_seed(random_state) % 2**32


def as_seeds(seeds: Any, random_state: int) -> list[int]:
    """Return the given seeds, or draw as many as the given number."""
    if isinstance(seeds, Integral):
        if seeds < 1:
            raise InvalidInputError(f"seeds must be at least 1, got {seeds!r}.")
        rng = np.random.default_rng([random_state, 1])
        return rng.integers(2**31 - 1, size=int(seeds)).tolist()
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise InvalidInputError("seeds is empty. Pass a number, or some seeds.")
    return seeds


def clone_with_seed(estimator: Any, seed: int) -> Any:
    """Return a clone with every ``random_state`` in it set to the seed."""
    estimator = clone(estimator)
    names = [
        name
        for name in estimator.get_params(deep=True)
        if name == "random_state" or name.endswith("__random_state")
    ]
    return estimator.set_params(**dict.fromkeys(names, seed))


def take(X: Any, rows: np.ndarray) -> Any:
    """Return some rows of samples, as the same type."""
    if hasattr(X, "iloc"):  # pandas
        return X.iloc[rows]
    if isinstance(X, Dataset):
        return Subset(X, rows.tolist())
    if hasattr(X, "with_columns"):  # polars
        return X[rows]
    return take_rows(X if isinstance(X, Mapping) else np.asarray(X), rows)


def check_arrays(X: Any, what: str) -> None:
    """Raise if the samples are not an array or a DataFrame."""
    if isinstance(X, Mapping | Dataset):
        raise InvalidInputError(
            f"{what} works on arrays and DataFrames, got {type(X).__name__}."
        )


def check_same_features(X: Any, ood: Any) -> None:
    """Raise if foreign samples have another size; only if both have a shape."""
    known, foreign = getattr(X, "shape", None), getattr(ood, "shape", None)
    if known is None or foreign is None:
        return
    is_empty = len(foreign) > 0 and foreign[0] == 0
    if is_empty or _sample_size(known) != _sample_size(foreign):
        raise InvalidInputError(
            f"ood must hold samples such as those of X, of shape {tuple(known)}, got "
            f"{tuple(foreign)}. Pass samples with the same features."
        )


def _sample_size(shape: Sequence[int]) -> list[int]:
    """Return the sorted axes of a sample: channels may be first, last or absent."""
    return sorted(n for n in shape[1:] if n != 1)
