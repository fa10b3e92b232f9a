"""What a fit settles before its first epoch, and what it must not lose."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.ensemble.aggregation import Aggregation
from sklearn_sharpbalance.ensemble.checkpoint import FitCheckpoints
from sklearn_sharpbalance.ensemble.fitting import Seeds
from sklearn_sharpbalance.ensemble.inputs import InputFormat
from sklearn_sharpbalance.ensemble.training import Trainer
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

__all__ = ["FitJob"]


@dataclass(frozen=True)
class FitJob:
    """Everything that a fit has settled before its first epoch."""

    params: dict[str, Any]
    trainer: Trainer
    aggregation: Aggregation
    seeds: Seeds
    input_format: InputFormat
    classes: np.ndarray
    engine: EngineChoice
    checkpoints: FitCheckpoints | None = None


@contextmanager
def _keeping_fitted_state(estimator):
    """Leave what was fitted before untouched if the block fails.

    Where nothing was, a fit that is interrupted leaves what it marked by
    :func:`keep_for_first_fit`.
    """

    def fitted():
        return {k: v for k, v in vars(estimator).items() if k.endswith("_")}

    before = fitted()
    try:
        yield
    except BaseException as error:
        n_epochs = getattr(error, "kept_epochs", 0)
        if n_epochs and "estimators_" not in before:
            warnings.warn(
                "The fit was interrupted. The ensemble is usable as it was after epoch "
                f"{n_epochs}, the last that all members had finished together.",
                SharpBalanceWarning,
                stacklevel=4,
            )
            raise
        for name in fitted():
            delattr(estimator, name)
        vars(estimator).update(before)
        raise


def keep_for_first_fit(interrupt, n_epochs):
    """Say that the estimator has been given a usable state of so many epochs."""
    interrupt.kept_epochs = n_epochs


def _take_weights(member, fitted):
    """Start a member from fitted weights; statistics of the input stay its own."""
    weights = {k: v for k, v in fitted.module.items() if k.startswith("module.")}
    for key, value in weights.items():
        if key not in member.module or member.module[key].shape != value.shape:
            raise InvalidInputError(
                f"warm_start=True goes on from the fitted weights, but {key!r} has "
                f"shape {tuple(value.shape)} there and does not fit the new network or "
                "data. Set warm_start=False."
            )
    member.module.update(weights)
