"""Train all members jointly, segment by segment."""

from contextlib import nullcontext
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
        Template of every member, or of its head.
    data : TrainingData
        Inputs of the members: samples, or the trunk's features of them.
    training : Segment
        Settings of the whole training.
    read : TrainingData
        Source of the batches: ``data``, or samples to augment before the trunk.
    unlabeled : TrainingData or None
        Like ``read``, without labels.
    trunk : Trunk or None
    seeds : Seeds
    objective : JointObjective
    pair_members : int or None
        Members drawn in each step for the diversity term; None takes all.
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
        """Return the members before the first epoch."""
        return self.make_members()

    def open(self, members):
        """Return an empty context: nothing is kept between segments."""
        return nullcontext()

    def prune(self, run, state, segment):
        """Raise: the plan of a joint training has no pruning."""
        raise AssertionError("joint training does not prune")

    def select(self, run, state, segment):
        """Raise: the plan of a joint training has no selection."""
        raise AssertionError("joint training does not select samples")

    def train(self, run, state: EnsembleState, segment: Segment, on_epoch=None):
        """Train all members for a segment and return the new state.

        Random draws depend on the seeds and the epoch only, so that the result does not
        depend on how the training is cut into segments.
        """
        segment = segment.with_masks(self._no_masks)
        count = EpochCount(len(state.members), on_epoch)
        sessions = [
            MemberSession(self.net, member, self.data, segment=segment, on_epoch=count)
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

    def as_trained(self, net) -> TrainingData:
        """Return the data with which to compute BatchNorm statistics of members.

        They include the augmentation. With a trunk, they are features of augmented
        samples if nets like ``net`` have batch statistics.
        """
        transform = self.training.transform
        if self.trunk is None or transform is None:
            return replace(self.data, transform=transform)
        if not has_batch_statistics(net):
            return self.data
        X = self.trunk.features(self.read.X, self.read.item_shape, transform=transform)
        return replace(self.data, X=X)

    @cached_property
    def _no_masks(self):
        return np.zeros((len(self.seeds.members), len(self.data)), dtype=bool)

    @cached_property
    def _feed(self):
        """Batches of all epochs; the data are copied to the device once."""
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
