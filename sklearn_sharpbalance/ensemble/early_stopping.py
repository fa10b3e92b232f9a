"""Early stopping on the score of the ensemble, not of a member."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sklearn_sharpbalance.ensemble.predicting import member_logits
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members import restore

__all__ = ["EarlyStopping", "check_early_stopping"]

DEFAULT_PATIENCE = 10


@dataclass
class EarlyStopping:
    """Remembers the best ensemble on the held-out part.

    Attributes
    ----------
    aggregation : Aggregation
    patience : int
        Epochs without progress after which training stops.
    scores : list of float
        Accuracy of the ensemble after every epoch.
    best : EnsembleState
        The state to go back to. Equal accuracy is decided by the likelihood.
    best_score : tuple of float
        Accuracy and mean log-likelihood of the best state.
    """

    aggregation: Any
    patience: int
    scores: list = field(default_factory=list)
    best: Any = None
    best_score: tuple = (-np.inf, -np.inf)

    @classmethod
    def of(cls, early_stopping, aggregation):
        """From the parameter: False, True, or a number of epochs."""
        if not early_stopping:
            return None
        patience = DEFAULT_PATIENCE if early_stopping is True else early_stopping
        return cls(aggregation, patience)

    def update(self, trainer, state) -> bool:
        """Score the ensemble; True when training should stop."""
        nets = [restore(trainer.net, member) for member in state.members]
        valid = trainer.data.valid
        proba = self.aggregation.combine(
            member_logits(nets, valid.X).astype(np.float64)
        )
        accuracy = float(np.mean(proba.argmax(axis=1) == valid.y))
        likely = np.maximum(proba[np.arange(len(valid)), valid.y], 1e-30)
        score = (accuracy, float(np.mean(np.log(likely))))
        self.scores.append(accuracy)
        if score > self.best_score:
            self.best_score, self.best = score, state
        return state.epoch - self.best.epoch >= self.patience


def check_early_stopping(early_stopping, data):
    """Early stopping needs something to look at."""
    if early_stopping and data.valid is None:
        raise InvalidInputError(
            "early_stopping needs held-out samples, got validation_fraction=None. Pass "
            "for example validation_fraction=0.1."
        )
