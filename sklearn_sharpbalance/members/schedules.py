"""Learning-rate schedules as functions of progress.

A schedule is a pure function of the share of training that is done. It has no state,
so a fit in several phases, or a resumed fit, follows the same curve.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "LR_SCHEDULES",
    "check_factors",
    "constant",
    "cosine",
    "one_cycle",
    "paper_steps",
    "resolve",
]

CHECKED_STEPS = 10_000  # evenly spaced in the training; takes some milliseconds


def constant(progress: float) -> float:
    """Return the factor one."""
    return 1.0


def paper_steps(progress: float) -> float:
    """Divide by ten at one half and again at three quarters, as the paper does.

    Examples
    --------
    >>> [paper_steps(p) for p in (0.0, 0.5, 0.75)]
    [1.0, 0.1, 0.01]
    """
    return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01


def cosine(progress: float) -> float:
    """Follow half a cosine from one to zero.

    Examples
    --------
    >>> round(cosine(0.5), 6)
    0.5
    """
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def one_cycle(progress: float) -> float:
    """Rise from 1/25 to one over the first 30 %, then fall to 1/1e4, as cosines.

    Examples
    --------
    >>> one_cycle(0.3)
    1.0
    """
    start, end, peak = 1 / 25, 1e-4, 0.3
    if progress < peak:
        return start + (1 - start) * (1 - cosine(progress / peak))
    return end + (1 - end) * cosine((progress - peak) / (1 - peak))


LR_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "steps": paper_steps,
    "cosine": cosine,
    "one_cycle": one_cycle,
}


def resolve(value) -> Callable[[float], float]:
    """Return the schedule of a name; return a function unchanged."""
    if callable(value):
        return value
    try:
        return LR_SCHEDULES[value]
    except (KeyError, TypeError):
        names = ", ".join(map(repr, LR_SCHEDULES))
        raise InvalidInputError(
            f"Unknown lr_schedule {value!r}. Choose one of {names}, or pass a function "
            "of progress in [0, 1), or a skorch LRScheduler."
        ) from None


def check_factors(training: Any, n_samples: int) -> None:
    """Raise if a schedule returns an invalid factor for a step of the training.

    Parameters
    ----------
    training : Segment
        Or an object with ``lr_schedule``, ``n_epochs`` and ``batch_size``.
    n_samples : int

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> linear = lambda progress: 1 - 2 * progress
    >>> check_factors(SimpleNamespace(lr_schedule=linear, n_epochs=9, batch_size=4), 8)
    Traceback (most recent call last):
    ...
    sklearn_sharpbalance.exceptions.InvalidInputError: lr_schedule must return a...
    """
    schedule = training.lr_schedule
    if schedule in LR_SCHEDULES.values():
        return
    n_steps = training.n_epochs * max(1, -(-n_samples // training.batch_size))
    steps = np.linspace(0, n_steps - 1, min(n_steps, CHECKED_STEPS)).astype(int)
    for progress in (steps / n_steps).tolist():
        try:
            factor = float(schedule(progress))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                "lr_schedule must be a function of progress in [0, 1) that returns a "
                f"number, but {schedule!r} failed at {progress:g}: "
                f"{in_a_sentence(error)}."
            ) from error
        if not math.isfinite(factor) or factor < 0:
            raise InvalidInputError(
                "lr_schedule must return a finite factor >= 0 of the learning rate, "
                f"but {schedule!r} returned {factor:g} at progress {progress:g}."
            )
