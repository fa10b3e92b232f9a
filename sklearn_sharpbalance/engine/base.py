"""The protocol of the engines: how members train through a segment."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import MemberState, Segment

__all__ = ["Engine", "EngineChoice", "EngineRun", "OnEpoch"]

OnEpoch = Callable[[int, dict[str, Any]], bool]


class EngineChoice(NamedTuple):
    """Which engine trains, and why.

    Attributes
    ----------
    name : {"skorch", "stacked", "graph", "modules"}
        The engine; "modules" is joint training, one network after the other.
    reason : str
        Why it was chosen: by the user, or because faster engines cannot be used.
    threads : int or None
        Number of torch's threads on a CPU; None is the setting of torch.
    """

    name: str
    reason: str
    threads: int | None = None


class EngineRun(ABC):
    """Members in training, from one segment to the next.

    The engine keeps a run open as long as it can train the next segment.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    members : list of MemberState
        Members before the first segment; not changed.
    data : TrainingData
    segment : Segment
        The first segment.
    masks : ndarray of shape (M, N), dtype bool
        True where the member applies SAM to the sample.

    Attributes
    ----------
    members : list of MemberState
        Members after the last segment.
    segment : Segment
        The last segment.
    masks : ndarray of shape (M, N), dtype bool
        Masks of the last segment.
    """

    def __init__(
        self,
        net,
        members: list[MemberState],
        data: TrainingData,
        segment: Segment,
        masks: np.ndarray,
    ):
        self.net, self.members, self.data = net, members, data
        self.segment, self.masks = segment, masks

    @property
    def stays_open(self) -> bool:
        """Whether the run stays open while samples are scored, which needs memory."""
        return False

    def can_train(self, segment: Segment, masks: np.ndarray) -> bool:
        """Whether the run can train a segment after its last one."""
        same_masks = np.array_equal(masks, self.masks)
        return segment.continues(self.segment) and same_masks

    @abstractmethod
    def train(
        self, segment: Segment, masks: np.ndarray, on_epoch: OnEpoch | None = None
    ) -> list[MemberState]:
        """Train every member from ``segment.start`` to ``segment.stop``.

        Parameters
        ----------
        segment : Segment
        masks : ndarray of shape (M, N), dtype bool
            The first segment with its masks, or others that the run :meth:`can_train`.
        on_epoch : callable, default=None
            Called with (member, record) after every epoch of a member that runs in
            this process; the member stops if it returns True.

        Returns
        -------
        members : list of MemberState
            The new :attr:`members`.
        """

    def close(self) -> None:  # noqa: B027 - most runs have nothing to free
        """Free the memory of the run on its device."""


class Engine(ABC):
    """Trains all members through the segments of a fit.

    Engines differ in speed and in the nets that they support, not in their result: for
    the same members, data, segment and masks all engines return the same members within
    float tolerance, with the same history.

    Parameters
    ----------
    jobs : MemberJobs or None, default=None
        Runs the scoring of members, and their training if the engine supports jobs;
        None is this process.
    """

    name: str

    def __init__(self, jobs: MemberJobs | None = None):
        self.jobs = jobs or MemberJobs(1)
        self._run: EngineRun | None = None

    def __getstate__(self):
        """Return the attributes without the open run, which belongs to this process."""
        return self.__dict__ | {"_run": None}

    @classmethod
    @abstractmethod
    def refusal(cls, net, data: TrainingData, training) -> str | None:
        """Return why this engine cannot train these members; None if it can.

        Parameters
        ----------
        net : NeuralNetClassifier
        data : TrainingData
        training : Segment
            The whole training, or an object with ``transform`` and ``precision``.
        """

    @abstractmethod
    def open(self, net, members, data, segment, masks) -> EngineRun:
        """Return a run; the parameters are those of :class:`EngineRun`."""

    def train(
        self, net, members, data, segment, masks, on_epoch: OnEpoch | None = None
    ) -> list[MemberState]:
        """Train every member through a segment.

        The run stays open. If it can train the next segment of the same members, that
        segment does not rebuild anything.

        Parameters
        ----------
        net, members, data, segment, masks
            As in :class:`EngineRun`.
        on_epoch : callable, default=None
            As in :meth:`EngineRun.train`.
        """
        run = self._run
        if run is None or not (
            net is run.net
            and members is run.members
            and data is run.data
            and run.can_train(segment, masks)
        ):
            self.close()
            run = self.open(net, members, data, segment, masks)
        self._run = None  # after an error the run is not used again
        trained = run.train(segment, masks, on_epoch)
        self._run = run
        if segment.last:
            self.close()
        return trained

    def make_room(self) -> None:
        """Close the open run if it may need the memory that scoring needs."""
        if self._run is not None and not self._run.stays_open:
            self.close()

    def close(self) -> None:
        """Close the open run, if there is one."""
        if self._run is not None:
            self._run.close()
        self._run = None
