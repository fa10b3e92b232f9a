"""Early stopping by the score of the whole ensemble."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from sklearn_sharpbalance.aggregation.nets import final_net, logits_on
from sklearn_sharpbalance.data.labels import (
    check_held_out,
    is_right,
    weighted_mean,
)
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["EarlyStopping", "check_early_stopping"]

DEFAULT_PATIENCE = 10


@dataclass
class EarlyStopping:
    """Keeps the ensemble with the best score on the held-out samples.

    Attributes
    ----------
    aggregation : Aggregation
    patience : int
        Epochs without a higher accuracy after which training stops; epochs of the
        warm-up do not count.
    scores : list of float
        Weighted accuracy of the ensemble after every epoch.
    best : EnsembleState
        The state to return to. Among epochs of equal accuracy it is the one of the
        highest likelihood, which does not prolong the training.
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
        """Return an instance for the parameter ``early_stopping``; None for False."""
        if not early_stopping:
            return None
        # A search over an array of settings passes np.bool_, which is not a bool.
        is_switch = isinstance(early_stopping, bool | np.bool_)
        return cls(aggregation, DEFAULT_PATIENCE if is_switch else early_stopping)

    def resume(self, scores, best, best_score) -> None:
        """Continue from the values of a checkpoint."""
        self.scores, self.best, self.best_score = scores, best, best_score

    def update(self, trainer, state) -> bool:
        """Score the ensemble; return whether training should stop.

        The ensemble is the one that ``fit`` would return now, with averaged weights
        and soups if they are used.
        """
        data = trainer.as_trained()
        valid = data.valid
        rule = clone(self.aggregation)  # it is fitted again after training
        with random_stream(trainer.net.device, seed=trainer.seeds.selection):
            nets = [final_net(trainer.net, member, data) for member in state.members]
            logits = logits_on(rule.prepare(nets, data), valid)
        proba = rule(logits.astype(np.float64))
        accuracy = weighted_mean(is_right(proba, valid.y), valid)
        # fmax ignores NaN, the probability of samples without a prediction.
        likely = np.fmax(proba[np.arange(len(valid)), valid.y], 1e-30)
        score = (accuracy, weighted_mean(np.log(likely), valid))
        self.scores.append(accuracy)
        n_dense = trainer.prune_epoch or 0
        if state.epoch <= n_dense:  # members are not pruned yet
            return False
        if score > self.best_score:
            self.best_score, self.best = score, state
        n_best = n_dense + int(np.argmax(self.scores[n_dense:])) + 1  # first maximum
        # Do not stop before the selection. With early stopping, a segment is an epoch.
        n_start = max(n_best, state.phases.count("warmup"))
        return len(self.scores) - n_start >= self.patience


def check_early_stopping(early_stopping, data):
    """Raise if early stopping has no held-out samples."""
    if early_stopping:
        check_held_out(data, "early_stopping needs")
