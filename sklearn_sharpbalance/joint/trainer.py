"""Train all members jointly: samples or features, segment by segment."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from sklearn_sharpbalance.aggregation.nets import has_batch_statistics
from sklearn_sharpbalance.data import TrainingData
from sklearn_sharpbalance.data.inputs import check_X, refuse_stream
from sklearn_sharpbalance.engine.choice import explain_out_of_memory
from sklearn_sharpbalance.engine.skorch_engine import loader_params
from sklearn_sharpbalance.engine.support import callback_refusal
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.joint.batches import JointFeed
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.joint.members import JointObjective, train_jointly
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.members.session import NO_REPORT, MemberSession
from sklearn_sharpbalance.members.state import initial_member
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.training.plan import EnsembleState, Seeds
from sklearn_sharpbalance.training.prepare import Inputs, Samples
from sklearn_sharpbalance.training.trainer import EpochCount, first_members


class JointTrainer:
    """Trains all members of a joint fit through its segments.

    ``net`` is the template of every member, or of its head. In each step the diversity
    term is computed for ``pair_members`` drawn members; None takes all. ``team`` is the
    class that trains them. The first members start from the weights of ``warm_nets``.
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
        """Raise for members that do not exist, and callbacks that are not called."""
        n_members = len(self.seeds.members)
        if self.pair_members is not None and self.pair_members > max(2, n_members):
            raise InvalidInputError(
                f"pair_members={self.pair_members} is more than the {n_members} "
                "members. Pass at most n_estimators, or None for all members."
            )
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

    def train(self, run, state: EnsembleState, segment: Segment, report=NO_REPORT):
        """Train all members for a segment and return the new state.

        Random draws depend on the seeds and the epoch only, so that the result does not
        depend on how the training is cut into segments.
        """
        segment = segment.with_masks(self._no_masks)
        count = EpochCount(len(state.members), report)
        sessions = [
            MemberSession(self.net, member, self.data, segment=segment, report=count)
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

    def passes(self, segment) -> float:
        """Return the passes over the samples in an epoch."""
        return 1.0

    def as_trained(self) -> TrainingData:
        """Return the data with which to compute BatchNorm statistics of members.

        They include the augmentation. With a trunk, they are features of augmented
        samples if members have batch statistics.
        """
        transform = self.training.transform
        if self.trunk is None or transform is None:
            return replace(self.data, transform=transform)
        net, _ = initial_member(self.net, 0, seed=self.seeds.members[0])
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


def check_one_device(device) -> None:
    """Raise if members would be distributed over several devices."""
    if len(resolve_devices(device)) > 1:
        raise InvalidInputError(
            f"Joint training runs on one device, but got device={device!r}. Pass one "
            "of them."
        )


def read_unlabeled(estimator, X_unlabeled, given: Samples):
    """Return validated samples without labels; None if the loss does not use them."""
    loss, X, fmt = estimator.loss, given.data.X, given.format
    if not DIVERSITY_LOSSES[loss].needs_unlabeled:
        return None
    if X_unlabeled is None:
        raise InvalidInputError(
            f"loss={loss!r} needs samples without labels, but got X_unlabeled=None. "
            "Pass X_unlabeled to fit, with the same layout as X, or use loss='sed', "
            "which needs no such samples."
        )
    refuse_stream(X_unlabeled)
    with random_stream(seed=0):
        X_unlabeled, found = check_X(estimator, X_unlabeled, reset=False, fitted=fmt)
    if fmt.kind == "frame" and found.given_shape == fmt.given_shape:
        if found.kind == "table":  # an array in place of a frame of numbers
            X_unlabeled = dict(zip(X, X_unlabeled.T))
        found = fmt
    same = found.shape == fmt.shape and isinstance(X_unlabeled, dict) == isinstance(
        X, dict
    )
    if same and isinstance(X, dict):
        same = X.keys() == X_unlabeled.keys()
    if not same:
        raise InvalidInputError(
            "X_unlabeled must have the same layout as X, but X_unlabeled is "
            f"{_layout(X_unlabeled, found)} and X is {_layout(X, fmt)}."
        )
    item_shape = found.shape if found.kind == "dataset" else None
    return TrainingData.unlabeled(X_unlabeled, item_shape)


def _layout(X, fmt):
    if isinstance(X, dict):
        kind = "DataFrame" if fmt.kind == "frame" else "dictionary"
        return f"a {kind} of {sorted(X)}"
    return f"samples of shape {fmt.given_shape}"
