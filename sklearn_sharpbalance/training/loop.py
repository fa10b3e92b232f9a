"""The training loop: warm-up, score, select, train, stop and checkpoint."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.training.checkpoint import FitCheckpoints
from sklearn_sharpbalance.training.early_stopping import EarlyStopping
from sklearn_sharpbalance.training.plan import EnsembleState, remaining

__all__ = ["Progress", "Trainer", "TrainingLoop"]


class Trainer(Protocol):
    """Trains the members of a fit, segment by segment."""

    net: Any
    data: Any
    training: Segment

    def first_members(self) -> list:
        """Return the members before the first epoch."""

    def open(self, members: list) -> AbstractContextManager:
        """Return the context of a run, which the other methods take."""

    def prune(self, run, state: EnsembleState, segment: Segment) -> EnsembleState:
        """Set the smallest weights of each member to zero."""

    def select(self, run, state: EnsembleState, segment: Segment) -> EnsembleState:
        """Score all samples by all members, and select the samples for SAM."""

    def train(
        self, run, state: EnsembleState, segment: Segment, on_epoch
    ) -> EnsembleState:
        """Train all members for a segment."""


class Progress(Protocol):
    """Follows the segments of a fit; such as ``FitProgress``."""

    stop: bool

    def fit(self) -> AbstractContextManager:
        """Return the context of the whole fit."""

    def segment(self, segment: Segment) -> AbstractContextManager:
        """Return the context of a segment, with what engines call after epochs."""

    def offer(self, state: EnsembleState) -> None:
        """Take the state at the end of a segment."""


class TrainingLoop:
    """Runs the plan of a fit.

    Parameters
    ----------
    trainer : Trainer
    plan : list of Segment
    checkpoints : FitCheckpoints or None, default=None
    early_stopping : EarlyStopping or None, default=None

    Attributes
    ----------
    state : EnsembleState
        State after the last complete segment; set by :meth:`start`.
    """

    state: EnsembleState

    def __init__(
        self,
        trainer: Trainer,
        plan: list[Segment],
        *,
        checkpoints: FitCheckpoints | None = None,
        early_stopping: EarlyStopping | None = None,
    ):
        self.trainer, self.plan = trainer, plan
        self.checkpoints, self.early_stopping = checkpoints, early_stopping

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
            self.early_stopping.resume(saved.scores, saved.best, saved.best_score)
        return [] if saved.finished else remaining(self.plan, saved.state.epoch)

    def run(self, segments: list[Segment], progress: Progress) -> None:
        """Train the segments until the last one, or until a stop is requested."""
        for _ in self.steps(segments, progress):
            pass

    def steps(
        self, segments: list[Segment], progress: Progress
    ) -> Iterator[tuple[EnsembleState, Segment]]:
        """Train the segments; yield the state and the segment before each training.

        A search runs many fits side by side, and trains their next segments together
        before it continues them.
        """
        trainer, state = self.trainer, self.state
        with progress.fit(), trainer.open(state.members) as run:
            for i, segment in enumerate(segments):
                following = segments[i + 1] if i + 1 < len(segments) else None
                with progress.segment(segment) as on_epoch:
                    if segment.prune:
                        state = trainer.prune(run, state, segment)
                    if segment.select:
                        state = trainer.select(run, state, segment)
                    yield state, segment
                    state = trainer.train(run, state, segment, on_epoch)
                    progress.offer(state)
                self.state = state
                finished = following is None or progress.stop or state.all_stopped
                if self.early_stopping is not None:
                    finished |= self.early_stopping.update(trainer, state)
                if self.checkpoints is not None and (
                    finished or self.checkpoints.is_due(segment, following)
                ):
                    self.checkpoints.write(
                        state, self.early_stopping, finished=finished
                    )
                if finished:
                    break
