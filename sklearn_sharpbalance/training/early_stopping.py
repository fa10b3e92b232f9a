"""Early stopping on the score of the ensemble, not of a member."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from sklearn_sharpbalance.aggregation.predicting import logits_on
from sklearn_sharpbalance.aggregation.soups import final_net
from sklearn_sharpbalance.data.validation_split import (
    check_held_out,
    is_right,
    weighted_mean,
)
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["EarlyStopping", "check_early_stopping"]

DEFAULT_PATIENCE = 10


@dataclass
class EarlyStopping:
    """Remembers the best ensemble on the held-out part.

    Attributes
    ----------
    aggregation : Aggregation
    patience : int
        Epochs without a rise of the accuracy after which training stops; those of the
        warm-up do not count.
    scores : list of float
        Accuracy of the ensemble after every epoch, by the samples' weights.
    best : EnsembleState
        The state to go back to. Among epochs of equal accuracy it is the one of the
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
        """From the parameter: False, True, or a number of epochs."""
        if not early_stopping:
            return None
        # An array of settings to search over holds np.bool_, which is not `True`.
        is_switch = isinstance(early_stopping, bool | np.bool_)
        return cls(aggregation, DEFAULT_PATIENCE if is_switch else early_stopping)

    def resume(self, scores, best, best_score) -> None:
        """Continue from what a checkpoint has kept."""
        self.scores, self.best, self.best_score = scores, best, best_score

    def update(self, trainer, state) -> bool:
        """Score the ensemble; True when training should stop.

        The ensemble is what ``fit`` would leave behind if it stopped here: averaged
        weights where there are some, a soup where predictions come from one.
        """
        data = trainer.as_trained()
        valid = data.valid
        rule = clone(self.aggregation)  # what it learns now is not the end
        with random_stream(trainer.net.device, seed=trainer.selection_seed):
            nets = [final_net(trainer.net, member, data) for member in state.members]
            logits = logits_on(rule.prepare(nets, data), valid)
        proba = rule(logits.astype(np.float64))
        accuracy = weighted_mean(is_right(proba, valid.y), valid)
        # fmax, since NaN, where there is no prediction, would hide all others.
        likely = np.fmax(proba[np.arange(len(valid)), valid.y], 1e-30)
        score = (accuracy, weighted_mean(np.log(likely), valid))
        self.scores.append(accuracy)
        n_dense = trainer.prune_epoch or 0
        if state.epoch <= n_dense:  # not what was asked for, however good
            return False
        if score > self.best_score:
            self.best_score, self.best = score, state
        rise = n_dense + int(np.argmax(self.scores[n_dense:]))  # the first of equals
        # A segment is an epoch here. To end in the warm-up would be to select nothing.
        since = max(rise + 1, state.phases.count("warmup"))
        return len(self.scores) - since >= self.patience


def check_early_stopping(early_stopping, data):
    """Early stopping needs something to look at."""
    if early_stopping:
        check_held_out(data, "early_stopping needs")
