"""Which classifiers are evaluated, by name, and on what."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._outputs import last_step

__all__ = ["as_methods", "check_alike", "check_arrays"]


def as_methods(estimators: Any) -> dict[str, list[Any]]:
    """Names of methods and the classifiers (one per seed) of each.

    A single one and those of a list are named by their class, with a number where
    that is not unique.
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
        raise InvalidInputError(
            "There is nothing to evaluate"
            + (f" for {empty[0]!r}" if empty else "")
            + ". Pass a fitted classifier, a list of them, or a dictionary of names to "
            "one or a list."
        )
    return methods


def _as_list(runs: Any) -> list[Any]:
    return list(runs) if isinstance(runs, (list, tuple)) else [runs]


def check_alike(X: Any, ood: Any) -> None:
    """Foreign samples must be of the same size, where both have a shape."""
    known, foreign = getattr(X, "shape", None), getattr(ood, "shape", None)
    if known is None or foreign is None:
        return
    if 0 in foreign[:1] or _sizes(known) != _sizes(foreign):
        raise InvalidInputError(
            f"ood must hold samples such as those of X, of shape {tuple(known)}, got "
            f"{tuple(foreign)}. Pass samples with the same features."
        )


def _sizes(shape: Sequence[int]) -> list[int]:
    """Lengths of a sample's axes: channels may come first, last or not at all."""
    return sorted(n for n in shape[1:] if n != 1)


def check_arrays(X: Any, what: str) -> None:
    """Only arrays can be corrupted or cut into folds."""
    if isinstance(X, Mapping | Dataset):
        raise InvalidInputError(
            f"{what} works on arrays and DataFrames, got {type(X).__name__}."
        )
