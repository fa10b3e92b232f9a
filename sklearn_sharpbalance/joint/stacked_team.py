"""Joint training as one batched computation, for MLP-like members."""

from copy import copy
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.engine.base import EngineChoice
from sklearn_sharpbalance.engine.stacked import (
    StackedEngine,
    _stacked_optimizer,
    take_options,
)
from sklearn_sharpbalance.engine.stacking import (
    StackedNetwork,
    layers_to_stack,
    unstack_optimizer,
)
from sklearn_sharpbalance.joint.members import ModuleTeam, Team
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.runtime.precision import autocast

__all__ = ["StackedTeam", "choose_team"]


class StackedTeam(Team):
    """Members as one network whose weights have a leading member axis."""

    def __init__(self, sessions, phase):
        super().__init__(sessions, phase)
        net = sessions[0].net
        self.smoothing = net.criterion_.label_smoothing
        self.standardize = net.module_.standardize
        inner = net.module_.module
        layers = layers_to_stack(inner, "module.")
        states = [session.net.module_.state_dict() for session in sessions]
        self.network = StackedNetwork(layers, states, self.device)
        self.optimizer = _stacked_optimizer(sessions, self.network, phase)

    def labeled(self, x, y):
        """All members on one batch."""
        logits = self._forward(self.network, x, len(self))
        losses = cross_entropy(
            logits.flatten(0, 1),
            y.repeat(len(self)),
            reduction="none",
            label_smoothing=self.smoothing,
        )
        return logits, losses.view(len(self), -1)

    def unlabeled(self, x, members):
        """The drawn members alone."""
        network = self.network
        if len(members) < len(self):
            network = copy(network)
            chosen = torch.tensor(members, device=self.device)
            network.params = {
                key: weight.index_select(0, chosen)
                for key, weight in network.params.items()
            }
        return self._forward(network, x, len(members))

    def _forward(self, network, x, n_members):
        x = self.standardize(x).flatten(1)
        with autocast(self.phase.precision, self.device):
            return network(x.expand(n_members, *x.shape)).float()

    def update(self, loss, lr_factor):
        """One step of the one optimizer."""
        set_learning_rate(self.optimizer, lr_factor)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.descend()

    def rate(self):
        """Learning rate of all members."""
        return float(self.optimizer.param_groups[0]["lr"])

    def write_weights(self):
        """Copy the stacked weights into the members' modules."""
        for i, session in enumerate(self.sessions):
            weights = self.network.member_weights(i)
            session.net.module_.load_state_dict(weights, strict=False)

    def read_weights(self):
        """Take over what callbacks may have made of the weights, and of options."""
        for i, session in enumerate(self.sessions):
            if session.net.callbacks_:
                self.network.take_weights(i, session.net.module_.state_dict())
        take_options(self.optimizer, self.sessions)

    def write_back(self):
        """Copy weights and optimizer state into the members' nets."""
        self.write_weights()
        stacked = self.optimizer.state_dict()
        for i, session in enumerate(self.sessions):
            groups = session.net.optimizer_.state_dict()["param_groups"]
            for group, trained in zip(groups, stacked["param_groups"]):
                group["lr"] = trained["lr"]
            state = unstack_optimizer(stacked, i, groups)
            session.net.optimizer_.load_state_dict(state)


def choose_team(net, data, settings):
    """The fastest way to train these members jointly, and why.

    Parameters
    ----------
    net : NeuralNetClassifier
    data : TrainingData
    settings : Settings

    Returns
    -------
    team : type
        Class of the team.
    choice : EngineChoice
    """
    # All members share one augmentation, so it does not keep them from being stacked.
    reason = StackedEngine.refusal(net, data, replace(settings, transform=None))
    if reason is None:
        return StackedTeam, EngineChoice("stacked", "the fastest that fits")
    return ModuleTeam, EngineChoice("modules", f"not stacked: {reason}")
