r"""Joint training: all members on the same batches, with a diversity term.

A step descends along the gradient of

.. math:: M \Big( \frac1M \sum_m \mathrm{CE}^m + \lambda D \Big)

with a diversity term :math:`D`. Because of the factor :math:`M`, each member gets the
gradient of its own loss: learning rates have the same effect as in a deep ensemble, and
:math:`\lambda = 0` is a deep ensemble.
"""

import math
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.engine.base import EngineChoice
from sklearn_sharpbalance.engine.choice import choose_threads
from sklearn_sharpbalance.engine.stacked.engine import StackedEngine
from sklearn_sharpbalance.engine.stacked.members import StackedMembers
from sklearn_sharpbalance.exceptions import DivergenceError
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.net import as_logits
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.optim.batchnorm import frozen_batch_statistics
from sklearn_sharpbalance.runtime.devices import autocast, tf32
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import set_training


@dataclass(frozen=True)
class JointObjective:
    """The name of the diversity term, and its weight lambda."""

    loss: str
    weight: float

    @property
    def unlabeled(self) -> bool:
        """Whether the term is computed on samples without labels."""
        return DIVERSITY_LOSSES[self.loss].needs_unlabeled


class Team:
    """All members during training; subclasses decide how weights are stored.

    They compute the logits of ``labeled`` and ``unlabeled`` batches, take the step of
    ``update`` and return its learning ``rate``.
    """

    def __init__(self, sessions, segment):
        self.sessions, self.segment = sessions, segment
        self.device = torch.device(sessions[0].net.device)

    def __len__(self):
        return len(self.sessions)

    def write_weights(self):
        """Copy the weights to the members' modules, where callbacks read them."""

    def read_weights(self):
        """Copy back the weights, which callbacks may have changed."""

    def write_back(self):
        """Copy weights and optimizer state to the members' nets after training."""


class ModuleTeam(Team):
    """Members as separate modules that run one after the other in one graph."""

    def __init__(self, sessions, segment):
        super().__init__(sessions, segment)
        # One scaler, because members share one loss. The first member keeps its state
        # between segments. Without fp16 it is disabled.
        self.scaler = sessions[0].scaler

    def labeled(self, x, y):
        """Return logits and losses; each member draws its own dropout."""
        pairs = [self._labeled(session.net, x, y) for session in self.sessions]
        logits, losses = zip(*pairs)
        return torch.stack(logits), torch.stack(losses)

    def _labeled(self, net, x, y):
        output = self._forward(net, x)
        with autocast(self.segment.precision, self.device):
            losses = sample_losses(net, output, y)
        return as_logits(net, output), losses.float()

    def unlabeled(self, x, members):
        """Return logits without an update of running BatchNorm statistics."""
        return torch.stack([self._unlabeled(i, x) for i in members])

    def _unlabeled(self, member, x):
        net = self.sessions[member].net
        set_training(net, True)
        with frozen_batch_statistics(net.module_):
            return as_logits(net, self._forward(net, x))

    def _forward(self, net, x):
        set_training(net, True)
        with autocast(self.segment.precision, self.device):
            return net.infer(x)

    def update(self, loss, lr_factor):
        """Run one backward pass for all members, then a step of each optimizer."""
        optimizers = [session.net.optimizer_ for session in self.sessions]
        for optimizer in optimizers:
            set_learning_rate(optimizer, lr_factor)
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in optimizers:
            optimizer.descend(scaler=self.scaler)
        self.scaler.update()

    def rate(self):
        """Return the learning rate, which is the same for all members."""
        return float(self.sessions[0].net.optimizer_.param_groups[0]["lr"])


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
    """Return the class of the fastest team for these members, and the reason."""
    # Members share one augmentation, so it does not prevent stacking.
    reason = StackedEngine.refusal(net, data, replace(training, transform=None))
    if reason is None:
        threads = choose_threads(net, training.batch_size, len(training.rho))
        return StackedTeam, EngineChoice("stacked", "the fastest that fits", threads)
    threads = choose_threads(net, training.batch_size)
    return ModuleTeam, EngineChoice("modules", f"not stacked: {reason}", threads)


def train_jointly(team, feed, objective):
    """Return the states of all members after the team's segment.

    Training ends early only if callbacks have stopped every member.
    """
    segment = team.segment
    with random_stream(team.device), tf32(segment.precision):
        for epoch in range(segment.start, segment.stop):
            if all(session.stopped for session in team.sessions):
                break
            train_epoch(team, feed, objective, epoch)
    team.write_back()
    over = segment.last or all(session.stopped for session in team.sessions)
    return [session.finish(over) for session in team.sessions]


def train_epoch(team, feed, objective, epoch):
    """Train all members for one epoch."""
    for session in team.sessions:
        session.begin_epoch(epoch)
    team.read_weights()
    losses = torch.zeros(len(team), device=team.device)
    diversity = torch.zeros((), device=team.device)
    n_batches, report = team.segment.sizes.n_batches, team.sessions[0].report
    for t, batch in enumerate(feed.epoch(epoch)):
        own, term = joint_loss(team, batch, objective)
        loss = own.sum()
        if term is not None:
            loss = loss + len(team) * objective.weight * term
            diversity += term.detach()
        team.update(loss, team.segment.lr_factor(epoch, t))
        losses += own.detach()
        report.reached(range(len(team)), epoch + (t + 1) / n_batches)
    _end_epoch(
        team,
        epoch,
        losses=(losses / n_batches).tolist(),
        diversity=diversity.item() / n_batches,
    )


def joint_loss(team, batch, objective):
    """Return the members' losses (M,) and the diversity term; None if not used."""
    logits, losses = team.labeled(batch.x, batch.y)  # (M, B, C), (M, B)
    own = (losses * batch.weight).sum(1)  # (M,)
    if objective.weight == 0 or len(team) == 1:
        return own, None
    if objective.unlabeled:
        drawn = team.unlabeled(batch.unlabeled, batch.drawn)  # (K, B', C)
    else:
        # Do not index by a list, which would be copied to the device.
        drawn = torch.stack([logits[member] for member in batch.drawn])
    with torch.no_grad():
        mean_logits = logits.mean(0)  # (B, C)
    return own, DIVERSITY_LOSSES[objective.loss].term(drawn, batch, mean_logits)


def _end_epoch(team, epoch, losses, diversity):
    """Record the losses and call callbacks."""
    lr = team.rate()
    if not math.isfinite(diversity):
        raise DivergenceError(
            f"The diversity term became {diversity} in epoch {epoch + 1} at learning "
            f"rate {lr:g}. Lower lr or diversity_weight."
        )
    if any(session.reads_weights for session in team.sessions):
        team.write_weights()
    for session, loss in zip(team.sessions, losses):
        session.net.history.record("diversity_loss", diversity)
        session.end_epoch(epoch, loss, lr)
    team.read_weights()
