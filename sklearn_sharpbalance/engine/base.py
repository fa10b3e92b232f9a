"""The protocol of the engines: how members train through a segment."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members import MemberState, Segment, score_member
from sklearn_sharpbalance.members.session import NO_REPORT, Report

__all__ = ["Engine", "EngineChoice", "EngineRun", "Team", "TeamRun"]


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
    """The members of a fit, from its first segment to its last; a context manager.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    members : list of MemberState
        Members before the first segment, which are not changed. The attribute has the
        members after the last segment.
    data : TrainingData
    """

    def __init__(self, net, members: list[MemberState], data: TrainingData):
        self.net, self.members, self.data = net, members, data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    @abstractmethod
    def train(
        self, segment: Segment, masks: np.ndarray, report: Report = NO_REPORT
    ) -> list[MemberState]:
        """Train every member from ``segment.start`` to ``segment.stop``.

        Parameters
        ----------
        segment : Segment
        masks : ndarray of shape (M, N), dtype bool
            True where the member applies SAM to the sample.
        report : Report
            Hears how far members are that train in this process, and may stop them.

        Returns
        -------
        members : list of MemberState
            The new :attr:`members`.
        """

    def replace(self, members: list[MemberState]) -> None:
        """Continue with other members, such as pruned ones."""
        self.members = members

    def make_room(self) -> None:  # noqa: B027 - most runs keep nothing
        """Free the memory that the scoring of samples may need."""

    def close(self) -> None:  # noqa: B027 - most runs keep nothing
        """Free the memory on the device."""


class Team(ABC):
    """Members that are set up to train together, with their data on the device.

    The parameters ``segment`` and ``masks`` are those of the first segment, the
    attributes those of the last one.
    """

    leaves_room = False  # whether samples can be scored while the team is kept

    def __init__(self, net, members, data, segment, masks):
        self.net, self.members, self.data = net, members, data
        self.segment, self.masks = segment, masks

    def can_train(self, segment: Segment, masks: np.ndarray) -> bool:
        """Whether the team can train a segment after its last one."""
        same_masks = np.array_equal(masks, self.masks)
        return segment.continues(self.segment) and same_masks

    @abstractmethod
    def train(self, segment, masks, report=NO_REPORT) -> list[MemberState]:
        """Train the first segment, or one that the team :meth:`can_train`."""

    def close(self) -> None:  # noqa: B027 - most teams have nothing to free
        """Free the memory on the device."""


class TeamRun(EngineRun):
    """Trains with a team, which is kept as long as it can train the next segment.

    ``build`` is the class of the team.
    """

    def __init__(self, build: Callable[..., Team], net, members, data):
        super().__init__(net, members, data)
        self.build = build
        self._team: Team | None = None

    def train(self, segment, masks, report=NO_REPORT):
        """Train with the team of the last segment, or with a new one."""
        team, self._team = self._team, None  # not used again after an error
        if team is None or not team.can_train(segment, masks):
            if team is not None:
                team.close()
            team = self.build(self.net, self.members, self.data, segment, masks)
        self.members = team.train(segment, masks, report)
        self._team = team
        return self.members

    def replace(self, members):
        """Continue with other members, in a new team."""
        self.close()
        super().replace(members)

    def make_room(self):
        """Close the team if its memory may be needed."""
        if self._team is not None and not self._team.leaves_room:
            self.close()

    def close(self):
        """Close the team."""
        if self._team is not None:
            self._team.close()
        self._team = None


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

    def scores_together(self, net, scorer, precision: str) -> bool:
        """Whether :meth:`score` scores all members at once, without their modules."""
        return False

    def score(self, net, members, data, scorer, precision: str) -> np.ndarray:
        """Return the sharpness of every sample by every member, (M, N)."""
        calls = [
            {"state": member, "scorer": scorer, "precision": precision}
            for member in members
        ]
        return np.stack(self.jobs.run(score_member, net, data, calls))

    @abstractmethod
    def open(self, net, members, data) -> EngineRun:
        """Return a run, which builds nothing before its first segment."""
