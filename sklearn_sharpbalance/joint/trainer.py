"""Joint training: all members through a segment together."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from sklearn_sharpbalance.aggregation.soups import has_batch_statistics
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.engine.out_of_memory import explain_out_of_memory
from sklearn_sharpbalance.joint.batches import JointFeed
from sklearn_sharpbalance.joint.members import JointObjective, train_jointly
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.members.shared_trunk import Trunk
from sklearn_sharpbalance.members.train import loader_params
from sklearn_sharpbalance.training.state import EnsembleState, Seeds
from sklearn_sharpbalance.training.trainer import EpochCount

__all__ = ["JointTrainer"]


class JointTrainer:
    """Trains all members of a joint fit through its segments.

    Parameters
    ----------
    net : NeuralNetClassifier
        What every member, or its head, is a copy of.
    data : TrainingData
        What the members see: samples, or the trunk's features of them.
    training : Segment
        The whole training.
    read : TrainingData
        What batches are read from: ``data``, or samples that are augmented first.
    unlabeled : TrainingData or None
        Like ``read``, without labels.
    trunk : Trunk or None
    seeds : Seeds
    objective : JointObjective
    pair_members : int or None
        Members that are drawn in each step for the pair loss.
    team : type
        Class of the team that trains.
    make_members : callable
        Returns the members before the first epoch.
    """

    prune_epoch = None

    def __init__(
        self,
        net,
        data: TrainingData,
        training: Segment,
        *,
        read: TrainingData,
        unlabeled: TrainingData | None,
        trunk: Trunk | None,
        seeds: Seeds,
        objective: JointObjective,
        pair_members: int | None,
        team: type,
        make_members,
    ):
        self.net, self.data, self.training = net, data, training
        self.read, self.unlabeled, self.trunk = read, unlabeled, trunk
        self.seeds, self.objective, self.pair_members = seeds, objective, pair_members
        self.team, self.make_members = team, make_members

    def first_members(self):
        """Members before the first epoch."""
        return self.make_members()

    def prune(self, state, segment):
        """Raise: the plan of a joint training has no pruning."""
        raise AssertionError("joint training does not prune")

    def select(self, state, segment):
        """Raise: the plan of a joint training has no selection."""
        raise AssertionError("joint training does not select samples")

    def train(self, state: EnsembleState, segment: Segment, on_epoch=None):
        """Train all members through a segment; returns the new state.

        The randomness of an epoch depends on the seeds and the epoch alone, so that a
        training with cuts equals one without.
        """
        segment = segment.with_masks(self._no_masks)
        count = EpochCount(len(state.members), on_epoch)
        sessions = [
            MemberSession(self.net, member, self.data, segment, count)
            for member in state.members
        ]

        def train():
            team = self.team(sessions, segment)
            return train_jointly(team, self._feed, self.objective)

        members = explain_out_of_memory(train, self.net, len(sessions))
        before = state.epochs or [0] * len(members)
        return EnsembleState(
            members,
            epoch=segment.stop,
            phases=[*state.phases, segment.name],
            epochs=[n + more for n, more in zip(before, count.epochs)],
        )

    def close(self) -> None:
        """Free nothing: members keep nothing between segments."""

    def as_trained(self, net) -> TrainingData:
        """The data as members normalised them, for statistics of their weights.

        Behind a trunk the augmentation comes first: features of augmented samples
        replace those of the samples, if nets like ``net`` have batch statistics.
        """
        transform = self.training.transform
        if self.trunk is None or transform is None:
            return replace(self.data, transform=transform)
        if not has_batch_statistics(net):
            return self.data
        X = self.trunk.features(self.read.X, self.read.item_shape, transform)
        return replace(self.data, X=X)

    @cached_property
    def _no_masks(self):
        return np.zeros((len(self.seeds.members), len(self.data)), dtype=bool)

    @cached_property
    def _feed(self):
        """Batches of any epoch; the data move to the device once for all segments."""
        return JointFeed(
            self.read,
            self.unlabeled,
            self.training.with_masks(self._no_masks),
            n_members=len(self.seeds.members),
            n_drawn=self.pair_members,
            seed=self.seeds.selection,
            device=torch.device(self.net.device),
            trunk=None if self.read is self.data else self.trunk,
            loader_params=loader_params(self.net),
        )
