"""The training loop: warm-up, score, select, train, stop and checkpoint."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from sklearn_sharpbalance.aggregation.nets import final_net, logits_on
from sklearn_sharpbalance.data.labels import is_right, weighted_mean
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints
from sklearn_sharpbalance.training.plan import EnsembleState, is_due, remaining

DEFAULT_PATIENCE = 10


@dataclass
class EarlyStopping:
    """Keeps the ensemble with the best score on the validation set.

    Among epochs of equal accuracy it is the one of the highest likelihood, which does
    not prolong the training. ``patience`` does not count epochs of the warm-up.
    """

    aggregation: Any
    patience: int
    scores: list = field(default_factory=list)  # weighted accuracy after every epoch
    best: Any = None  # the state to return to
    best_score: tuple = (-np.inf, -np.inf)  # accuracy and mean log-likelihood

    @classmethod
    def of(cls, early_stopping, aggregation):
        """Return an instance for the parameter ``early_stopping``; None for False."""
        if not early_stopping:
            return None
        # A search over an array of settings passes np.bool_, which is not a bool.
        is_switch = isinstance(early_stopping, bool | np.bool_)
        return cls(aggregation, DEFAULT_PATIENCE if is_switch else early_stopping)

    def update(self, trainer, state) -> bool:
        """Score the ensemble that ``fit`` would return now; return whether to stop."""
        score = self._score(trainer, state)
        self.scores.append(score[0])
        n_dense = trainer.prune_epoch or 0
        if state.epoch <= n_dense:  # members are not pruned yet
            return False
        if score > self.best_score:
            self.best_score, self.best = score, state
        n_best = n_dense + int(np.argmax(self.scores[n_dense:])) + 1  # first maximum
        # Do not stop before the selection. With early stopping, a segment is an epoch.
        n_start = max(n_best, state.phases.count("warmup"))
        return len(self.scores) - n_start >= self.patience

    def _score(self, trainer, state):
        """Return accuracy and mean log-likelihood on the validation set."""
        data = trainer.as_trained()
        valid = data.valid
        rule = clone(self.aggregation)  # it is fitted again after training
        with random_stream(trainer.net.device, seed=trainer.seeds.selection):
            nets = [final_net(trainer.net, member, data) for member in state.members]
            logits = logits_on(rule.prepare(nets, data), valid)
        proba = rule(logits.astype(np.float64))
        # fmax ignores NaN, the probability of samples without a prediction.
        likely = np.fmax(proba[np.arange(len(valid)), valid.y], 1e-30)
        accuracy = weighted_mean(is_right(proba, valid.y), valid)
        return accuracy, weighted_mean(np.log(likely), valid)


class TrainingLoop:
    """Runs the plan of a prepared fit.

    Its trainer makes the first members and opens a run. In the run it trains the
    members of a state for a segment, and returns the new state. Before that, it prunes
    members and selects samples where the plan says so.
    """

    state: EnsembleState  # after the last complete segment; set by start

    def __init__(self, prepared):
        self.trainer = prepared.trainer
        self.plan: list[Segment] = prepared.plan
        self.checkpoints: FitCheckpoints | None = prepared.checkpoints
        self.early_stopping: EarlyStopping | None = prepared.early_stopping

    @property
    def result(self) -> EnsembleState:
        """The best state with early stopping, else the last one."""
        best = None if self.early_stopping is None else self.early_stopping.best
        return self.state if best is None else best

    def start(self) -> list[Segment]:
        """Set the first state, or that of a checkpoint; return the segments to run."""
        saved = None
        if self.checkpoints is not None:
            saved = self.checkpoints.load(self.trainer.net, self.trainer.data)
        if saved is None:
            self.state = EnsembleState(self.trainer.first_members())
            if self.checkpoints is not None:  # raise for a bad disk before training
                self.checkpoints.write(self.state, self.early_stopping)
            return self.plan
        self.state = saved.state
        if self.early_stopping is not None:
            self.early_stopping.scores = saved.scores
            self.early_stopping.best = saved.best
            self.early_stopping.best_score = saved.best_score
        return [] if saved.finished else remaining(self.plan, saved.state.epoch)

    def steps(
        self, segments: list[Segment], progress
    ) -> Iterator[tuple[EnsembleState, Segment]]:
        """Train the segments until the last one, or until a stop is requested.

        Yield the state and the segment before each training: a search runs many fits
        side by side, and trains their next segments together before it continues them.
        """
        trainer, state = self.trainer, self.state
        with progress.fit(), trainer.open(state.members) as run:
            for i, segment in enumerate(segments):
                following = segments[i + 1] if i + 1 < len(segments) else None
                with progress.segment(segment) as report:
                    if segment.prune:
                        state = trainer.prune(run, state, segment)
                    if segment.select:
                        progress.selecting()
                        state = trainer.select(run, state, segment)
                    yield state, segment
                    state = trainer.train(run, state, segment, report)
                    progress.offer(state)
                self.state = state
                if self._end_segment(segment, following, progress.stop):
                    break

    def _end_segment(self, segment, following, stopped) -> bool:
        """Score the ensemble and write a checkpoint; return whether the fit is over."""
        all_stopped = all(member.stopped for member in self.state.members)
        finished = following is None or stopped or all_stopped
        if self.early_stopping is not None:
            finished |= self.early_stopping.update(self.trainer, self.state)
        checkpoints = self.checkpoints
        if checkpoints is not None and (finished or is_due(segment, following)):
            checkpoints.write(self.state, self.early_stopping, finished=finished)
        return finished


@contextmanager
def fitted_or_before(estimator):
    """Restore the fitted attributes of an earlier fit if this one fails.

    If there was none, the usable state of an interrupted fit is kept.
    """
    before = _fitted_attributes(estimator)
    try:
        yield
    except BaseException as error:
        now = _fitted_attributes(estimator)
        # n_iter_ is the last attribute that a fit sets.
        interrupted = isinstance(error, KeyboardInterrupt) and "n_iter_" in now
        if interrupted and "estimators_" not in before:
            kept = max(map(len, estimator.history_))
            warnings.warn(
                "The fit was interrupted. The ensemble is usable in its state after "
                f"epoch {kept}, the last one that all members have completed, or the "
                "best one with early stopping.",
                SharpBalanceWarning,
                stacklevel=5,
            )
            raise
        for name in now:
            delattr(estimator, name)
        vars(estimator).update(before)
        raise


def _fitted_attributes(estimator) -> dict[str, Any]:
    return {k: v for k, v in vars(estimator).items() if k.endswith("_")}
