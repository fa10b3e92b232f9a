"""Sessions of stacked members, most of them without a net of their own."""

import time
from dataclasses import replace

from skorch import NeuralNetClassifier

from sklearn_sharpbalance.members.own_settings import own_settings
from sklearn_sharpbalance.members.session import (
    MemberSession,
    check_finite,
    rho_name,
)
from sklearn_sharpbalance.members.state import loose_buffers, to_cpu

__all__ = ["SessionWithoutNet", "stacked_sessions"]


def stacked_sessions(net, members, data, segment) -> list:
    """Return a session for each member; all but the first without a net if possible.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    members : list of MemberState
    data : TrainingData
    segment : Segment
    """
    first = MemberSession(net, members[0], data, segment)
    uses_own_nets = (
        first.net.callbacks_
        or type(net) is not NeuralNetClassifier  # its methods may be called
        or data.valid is not None
        or segment.averaging is not None
        or segment.pruned
        or own_settings(net)
    )
    if uses_own_nets:
        return [first, *(MemberSession(net, m, data, segment) for m in members[1:])]
    shared = first.net
    return [first, *(SessionWithoutNet(shared, m, data, segment) for m in members[1:])]


class SessionWithoutNet:
    """A stacked member in training, in place of a MemberSession.

    It reads the settings from the net of another member. Restoring a net takes longer
    than an epoch of a small network.

    Parameters
    ----------
    net : NeuralNetClassifier
        Net of the first member of the ensemble, without callbacks; not changed.
    state : MemberState
    data : TrainingData
    segment : Segment
        Without averages and pruning.
    """

    reads_weights = False

    def __init__(self, net, state, data, segment):
        self.net, self.state, self.data = net, state, data
        self.stopped, self.masks = state.stopped, {}
        self._weights = net.module_.state_dict() | state.module
        self._optimizer = dict(state.optimizer or net.optimizer_.state_dict())
        groups = [dict(group) for group in self._optimizer["param_groups"]]
        self._optimizer["param_groups"] = groups
        self._history = list(state.history)
        self._started = 0.0
        self.begin_segment(segment)

    def begin_segment(self, segment, on_epoch=None):
        """Continue with the segment after the last one; ``rho`` may differ."""
        self.segment, self.on_epoch = segment, on_epoch
        for group in self._optimizer["param_groups"]:
            group[rho_name(group)] = segment.rho[self.state.index]

    def weights(self):
        """Return the state of the module."""
        return self._weights

    def options(self):
        """Return the parameter group of the optimizer."""
        return self._optimizer["param_groups"][0]

    def optimizer_state(self):
        """Return the state of the optimizer."""
        return self._optimizer

    def take_weights(self, weights):
        """Set weights of the module."""
        self._weights = self._weights | weights

    def take_optimizer(self, state):
        """Set the state of the optimizer."""
        self._optimizer = state

    def begin_epoch(self):
        """Start the timer of the epoch."""
        self._started = time.perf_counter()

    def end_epoch(self, epoch, loss, lr):
        """Write the record of the epoch, and call ``on_epoch``."""
        check_finite(loss, self.state.index, epoch, lr)
        record = {"epoch": len(self._history) + 1, "train_loss": loss, "lr": lr}
        record |= {"phase": self.segment.name}
        record |= {"dur": time.perf_counter() - self._started}
        self._history.append(record)
        if self.on_epoch is not None:
            self.stopped |= self.on_epoch(self.state.index, record)

    def finish(self):
        """Return the member's state after the segment."""
        return replace(
            self.state,
            module=to_cpu(self._weights),
            optimizer=to_cpu(self._optimizer),
            history=list(self._history),
            extra=loose_buffers(self.net),
            stopped=self.stopped,
        )
