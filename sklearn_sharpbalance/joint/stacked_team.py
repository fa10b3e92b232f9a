"""Joint training as one batched computation, for MLP-like members."""

from copy import copy
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.engine.base import EngineChoice
from sklearn_sharpbalance.engine.choice import choose_threads
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.engine.stacked.members import StackedMembers
from sklearn_sharpbalance.joint.members import ModuleTeam, Team
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.runtime.devices import autocast

__all__ = ["StackedTeam", "choose_team"]


class StackedTeam(Team):
    """Members as one network whose weights have a leading member axis."""

    def __init__(self, sessions, segment):
        super().__init__(sessions, segment)
        self.stack = StackedMembers(sessions)
        self.network, self.optimizer = self.stack.network, self.stack.optimizer

    def labeled(self, x, y):
        """Return logits (M, B, C) and losses (M, B) of all members on a batch."""
        logits = self._forward(self.network, x, len(self))
        losses = cross_entropy(
            logits.flatten(0, 1),
            y.repeat(len(self)),
            reduction="none",
            label_smoothing=self.stack.label_smoothing,
        )
        return logits, losses.view(len(self), -1)

    def unlabeled(self, x, members):
        """Return logits (K, B, C) of some members on a batch without labels."""
        network = self.network
        if len(members) < len(self):
            network = copy(network)
            chosen = torch.tensor(members, device=self.device)
            network.weights = network.weights.index_select(0, chosen)
        return self._forward(network, x, len(members))

    def _forward(self, network, x, n_members):
        x = self.stack.standardize(x)
        with autocast(self.segment.precision, self.device):
            return network(x.expand(n_members, *x.shape)).float()

    def update(self, loss, lr_factor):
        """Take one step of the optimizer of all members."""
        set_learning_rate(self.optimizer, lr_factor)
        self.optimizer.zero_grad()
        loss.backward()
        self.stack.descend()

    def rate(self):
        """Return the learning rate of all members."""
        return self.stack.member_lr(0)

    def write_weights(self):
        """Copy the stacked weights into the members' modules."""
        self.stack.write_weights(range(len(self)))

    def read_weights(self):
        """Copy back weights and options, which callbacks may have changed."""
        self.stack.read_weights(range(len(self)))

    def write_back(self):
        """Copy weights and optimizer state into the members' nets."""
        self.stack.write_back(range(len(self)))


def choose_team(net, data, training):
    """Return the fastest kind of team for these members, and the reason.

    Parameters
    ----------
    net : NeuralNetClassifier
    data : TrainingData
    training : Segment

    Returns
    -------
    team : type
        Class of the team.
    choice : EngineChoice
    """
    # Members share one augmentation, so it does not prevent stacking.
    reason = StackedEngine.refusal(net, data, replace(training, transform=None))
    if reason is None:
        threads = choose_threads(net, training.batch_size, len(training.rho))
        return StackedTeam, EngineChoice("stacked", "the fastest that fits", threads)
    threads = choose_threads(net, training.batch_size)
    return ModuleTeam, EngineChoice("modules", f"not stacked: {reason}", threads)
