"""Train all members jointly, segment by segment."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from sklearn_sharpbalance.aggregation.nets import has_batch_statistics
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.engine.choice import explain_out_of_memory
from sklearn_sharpbalance.engine.skorch_engine import loader_params
from sklearn_sharpbalance.engine.support import callback_refusal
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.batches import JointFeed
from sklearn_sharpbalance.joint.members import JointObjective, train_jointly
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.training.plan import EnsembleState, Seeds
from sklearn_sharpbalance.training.prepare import Inputs
from sklearn_sharpbalance.training.trainer import EpochCount, first_members

__all__ = ["JointTrainer"]


class JointTrainer:
    """Trains all members of a joint fit through its segments.

    Parameters
    ----------
    net : NeuralNetClassifier
        Template of every member, or of its head.
    inputs : Inputs
        Samples, or the trunk's features of them.
    training : Segment
        Settings of the whole training.
    seeds : Seeds
    n_classes : int
    warm_nets : list of NeuralNetClassifier
        Fitted nets whose weights the first members start from.
    objective : JointObjective
    pair_members : int or None
        Members drawn in each step for the diversity term; None takes all.
    team : type
        Class of the team that trains.
    """

    n_warmup = None  # no phases
    prune_epoch = None
    memory = None  # no cache

    def __init__(
        self,
        net,
        inputs: Inputs,
        training: Segment,
        *,
        seeds: Seeds,
        n_classes: int,
        warm_nets: list,
        objective: JointObjective,
        pair_members: int | None,
        team: type,
    ):
        self.net, self.training = net, training
        self.data, self.read = inputs.data, inputs.read
        self.unlabeled, self.trunk = inputs.unlabeled, inputs.trunk
        self.seeds, self.n_classes, self.warm_nets = seeds, n_classes, warm_nets
        self.objective, self.pair_members, self.team = objective, pair_members, team

    def check(self) -> None:
        """Raise if a callback needs more than the start and the end of epochs."""
        reason = callback_refusal(self.net)
        if reason is not None:
            raise InvalidInputError(
                "Joint training calls callbacks only at the start and the end of an "
                f"epoch, but {reason}. Remove that callback. For a learning rate "
                "schedule, pass a name or a function of progress as lr_schedule."
            )

    def first_members(self):
        """Return the members before the first epoch."""
        return first_members(
            self.net,
            self.seeds,
            self.data,
            n_classes=self.n_classes,
            warm_nets=self.warm_nets,
        )

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
