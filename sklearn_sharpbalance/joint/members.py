r"""Joint training: all members on the same batches, with a diversity term.

A step descends along the gradient of

.. math:: M \Big( \frac1M \sum_m \mathrm{CE}^m + \lambda D \Big)

with a diversity term :math:`D`. Because of the factor :math:`M`, each member gets the
gradient of its own loss: learning rates have the same effect as in a deep ensemble, and
:math:`\lambda = 0` is a deep ensemble.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.exceptions import DivergenceError
from sklearn_sharpbalance.joint.batches import RandomStreams
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from sklearn_sharpbalance.members.net import as_logits
from sklearn_sharpbalance.members.step import set_learning_rate
from sklearn_sharpbalance.optim.batchnorm import frozen_batch_statistics
from sklearn_sharpbalance.runtime.devices import autocast, tf32
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import set_training

__all__ = ["JointObjective", "ModuleTeam", "Team", "joint_loss", "train_jointly"]


@dataclass(frozen=True)
class JointObjective:
    """The diversity term and its weight.

    Attributes
    ----------
    loss : str
        A name in :data:`DIVERSITY_LOSSES`.
    weight : float
        The paper's lambda.
    """

    loss: str
    weight: float

    @property
    def unlabeled(self) -> bool:
        """Whether the term is computed on samples without labels."""
        return DIVERSITY_LOSSES[self.loss].needs_unlabeled


class Team(ABC):
    """All members during training; subclasses decide how weights are stored.

    Parameters
    ----------
    sessions : list of MemberSession
    segment : Segment
    """

    def __init__(self, sessions, segment):
        self.sessions, self.segment = sessions, segment
        self.device = torch.device(sessions[0].net.device)
        self.streams = RandomStreams(self.device)

    def __len__(self):
        return len(self.sessions)

    def start_epoch(self, seed, epoch):
        """Seed one random stream per member and one for all of them."""
        seeds = [session.state.seed for session in self.sessions]
        self.streams.start([*seeds, seed], epoch)

    @abstractmethod
    def labeled(self, x, y):
        """Return logits (M, B, C) and losses (M, B) of all members on a batch."""

    @abstractmethod
    def unlabeled(self, x, members):
        """Return logits (K, B, C) of some members on a batch without labels."""

    @abstractmethod
    def update(self, loss, lr_factor):
        """Take one step of every member along the gradient of the loss."""

    @abstractmethod
    def rate(self):
        """Return the learning rate of the last step."""

    @abstractmethod
    def write_weights(self):
        """Copy the weights to the members' modules, where callbacks read them."""

    @abstractmethod
    def read_weights(self):
        """Copy back the weights, which callbacks may have changed."""

    @abstractmethod
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
        pairs = [
            self.streams.run(i, self._labeled, session.net, x, y)
            for i, session in enumerate(self.sessions)
        ]
        logits, losses = zip(*pairs)
        return torch.stack(logits), torch.stack(losses)

    def _labeled(self, net, x, y):
        output = self._forward(net, x)
        with autocast(self.segment.precision, self.device):
            losses = sample_losses(net, output, y)
        return as_logits(net, output), losses.float()

    def unlabeled(self, x, members):
        """Return logits without an update of running BatchNorm statistics."""
        return torch.stack(
            [self.streams.run(i, self._unlabeled, i, x) for i in members]
        )

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

    def write_weights(self):
        """Do nothing: the modules hold the weights."""

    def read_weights(self):
        """Do nothing: the modules hold the weights."""

    def write_back(self):
        """Do nothing: the nets hold weights and optimizer state."""


def train_jointly(team, feed, objective):
    """Train all members from ``segment.start`` to ``segment.stop``.

    Parameters
    ----------
    team : Team
    feed : JointFeed
    objective : JointObjective

    Returns
    -------
    states : list of MemberState
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
    team.start_epoch(feed.seed, epoch)
    for session in team.sessions:
        session.begin_epoch(epoch)
    team.read_weights()
    losses = torch.zeros(len(team), device=team.device)
    diversity = torch.zeros((), device=team.device)
    for t, batch in enumerate(feed.epoch(epoch, team.streams, stream=len(team))):
        own, term = joint_loss(team, batch, objective)
        loss = own.sum()
        if term is not None:
            loss = loss + len(team) * objective.weight * term
            diversity += term.detach()
        team.update(loss, team.segment.lr_factor(epoch, t))
        losses += own.detach()
    n_batches = team.segment.sizes.n_batches
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
