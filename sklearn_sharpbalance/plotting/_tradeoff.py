"""What the trade-off of several ensembles is made of, with its names."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sklearn_sharpbalance.aggregation.combining import combine_probas
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._tradeoff import (
    DIVERSITIES,
    GAINS,
    diversity_of,
    gain_of,
)


def diversities(
    diversity: str | Callable, y_true: Any, member_probas: Sequence, classes: Any
) -> tuple[str, np.ndarray]:
    """Name of the measure and its value for each ensemble."""
    if callable(diversity):
        name = getattr(diversity, "__name__", "diversity").replace("_", " ")
        return name.capitalize(), np.array([diversity(p) for p in member_probas])
    if diversity not in DIVERSITIES:
        raise InvalidInputError(
            f"Unknown diversity {diversity!r}. Choose one of "
            f"{', '.join(map(repr, DIVERSITIES))}, or pass a function of member_probas."
        )
    values = [diversity_of(diversity, y_true, p, classes) for p in member_probas]
    return DIVERSITIES[diversity][0], np.array(values)


def colour_values(
    color: str | None,
    y_true: Any,
    member_probas: Sequence,
    ensemble_probas: Sequence | None,
    classes: Any,
) -> tuple[str | None, np.ndarray | None]:
    """Name of what colours the points and its value for each ensemble."""
    if color is None:
        return None, None
    if color not in GAINS:
        raise InvalidInputError(
            f"Unknown color {color!r}. Choose one of {', '.join(map(repr, GAINS))}, "
            "or None."
        )
    if ensemble_probas is None:
        ensemble_probas = [combine_probas(probas) for probas in member_probas]
    pairs = zip(member_probas, ensemble_probas)
    values = [gain_of(color, y_true, probas, p, classes) for probas, p in pairs]
    return GAINS[color], np.array(values)
