"""The door of the engines: how a phase of training runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import MemberState, Segment

__all__ = ["Engine", "EngineChoice", "OnEpoch"]

OnEpoch = Callable[[int, dict[str, Any]], bool]


class EngineChoice(NamedTuple):
    """Which engine trains, and why.

    Attributes
    ----------
    name : {"skorch", "stacked", "graph", "modules"}
        The engine; "modules" is joint training, one network after the other.
    reason : str
        Why this one: what was asked for, or what kept a faster one from it.
    """

    name: str
    reason: str


class Engine(ABC):
    """Trains all members through one phase.

    Engines differ in speed and in what they can run, not in their result: for the
    same states, data, phase and masks all of them return the same members within
    float tolerance, with the same history.

    Parameters
    ----------
    jobs : MemberJobs or None, default=None
        Where members are scored, and trained if the engine can; None is this process.
    """

    name: str

    def __init__(self, jobs: MemberJobs | None = None):
        self.jobs = jobs or MemberJobs(1)

    @classmethod
    @abstractmethod
    def refusal(cls, net, data: TrainingData, training) -> str | None:
        """Why this engine cannot train these members; None if it can.

        Parameters
        ----------
        net : NeuralNetClassifier
        data : TrainingData
        training : Segment
            The whole training, or anything with ``transform`` and ``precision``.
        """

    @abstractmethod
    def run_phase(
        self,
        net,
        states: list[MemberState],
        data: TrainingData,
        phase: Segment,
        masks: np.ndarray,
        on_epoch: OnEpoch | None = None,
    ) -> list[MemberState]:
        """Train every member from ``phase.start`` to ``phase.stop``.

        Parameters
        ----------
        net : NeuralNetClassifier
            Settings shared by all members; not changed.
        states : list of MemberState
            Members before the phase; not changed.
        data : TrainingData
        phase : Segment
        masks : ndarray of shape (M, N), dtype bool
            True where the member applies SAM to the sample.
        on_epoch : callable, default=None
            Called with (member, record) after every epoch of a member that runs in
            this process; the member stops where it returns True.
        """

    def release(self) -> None:  # noqa: B027 - most engines keep nothing
        """Free what was kept for the next segment of the same phase."""
