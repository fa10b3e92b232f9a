"""The epochs of a joint fit, all members together."""

from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.joint.batches import JointFeed
from sklearn_sharpbalance.joint.members import JointObjective, train_jointly
from sklearn_sharpbalance.joint.stacked_team import choose_team
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.members.train import _loader_params
from sklearn_sharpbalance.training.loop import EnsembleState, EpochCount, make_phase
from sklearn_sharpbalance.training.plan import Segment

__all__ = ["JointTrainer", "joint_segments"]


def joint_segments(n_epochs, every) -> list[Segment]:
    """A joint training in stretches of ``every`` epochs; None is one stretch.

    Examples
    --------
    >>> [(segment.start, segment.stop) for segment in joint_segments(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    edges = [*range(0, n_epochs, every or n_epochs), n_epochs]
    return [Segment("joint", start, stop) for start, stop in pairwise(edges)]


class JointTrainer:
    """Trains the members of a job from one epoch to another.

    Parameters
    ----------
    job : JointJob

    Attributes
    ----------
    choice : EngineChoice
    """

    def __init__(self, job):
        self.job = job
        self._team, self.choice = choose_team(job.net, job.data, job.settings)

    def run(self, state, segment, on_epoch=None):
        """Train all members through one segment; returns the new state.

        Every epoch's randomness depends on the seeds and the epoch alone, so members
        do not notice where a training is cut.

        Parameters
        ----------
        state : EnsembleState
        segment : Segment
        on_epoch : callable or None
            Called with (member, record) after every epoch of every member.
        """
        job, phase = self.job, self._phase(segment)
        count = EpochCount(len(state.members), on_epoch)
        sessions = [
            MemberSession(job.net, member, job.data, phase, count)
            for member in state.members
        ]
        objective = JointObjective(job.params["loss"], job.params["diversity_weight"])
        members = explain_out_of_memory(
            lambda: train_jointly(self._team(sessions, phase), self._feed, objective),
            job.net,
            len(sessions),
        )
        before = state.epochs or [0] * len(members)
        return EnsembleState(
            members,
            epoch=segment.stop,
            phases=[*state.phases, segment.name],
            epochs=[n + more for n, more in zip(before, count.epochs)],
        )

    def _phase(self, segment):
        settings, n_members = self.job.settings, len(self.job.seeds.members)
        nobody = np.zeros((n_members, len(self.job.data)), dtype=bool)
        return make_phase(settings, segment, nobody, (0.0,) * n_members)

    @cached_property
    def _feed(self):
        """Batches of any epoch; the data go to the device once for all segments."""
        job = self.job
        return JointFeed(
            job.read,
            job.unlabeled,
            self._phase(Segment("joint", 0, job.settings.n_epochs)),
            n_members=len(job.seeds.members),
            n_drawn=job.params["pair_members"],
            seed=job.seeds.selection,
            device=torch.device(job.net.device),
            trunk=None if job.read is job.data else job.trunk,
            loader_params=_loader_params(job.net),
        )
