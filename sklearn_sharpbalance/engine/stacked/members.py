"""Members in training whose weights and optimizers are stacked."""

import inspect
import time
from dataclasses import replace

import torch
from skorch import NeuralNetClassifier

from sklearn_sharpbalance.engine.stacked.network import (
    StackedNetwork,
    stack_optimizer,
    stackable_layers,
    unstack_optimizer,
)
from sklearn_sharpbalance.engine.support import base_optimizer
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members.member_params import own_settings
from sklearn_sharpbalance.members.session import (
    NO_REPORT,
    MemberSession,
    check_finite,
    rho_name,
)
from sklearn_sharpbalance.members.state import loose_buffers, to_cpu

__all__ = [
    "MemberRates",
    "SessionWithoutNet",
    "StackedMembers",
    "allows_own_rates",
    "stacked_network",
    "stacked_sessions",
]

KERNELS = ("fused", "foreach")  # options for how a step is computed
# Optimizers whose state does not depend on the learning rate.
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class StackedMembers:
    """One network and one optimizer for the members of several sessions.

    Parameters
    ----------
    sessions : list of MemberSession
        Their segments may differ in ``rho``, their nets in the statistics of the
        input, in the learning rate and in the weight decay.

    Attributes
    ----------
    label_smoothing : float
        Option of the loss, the same for all members.
    network : StackedNetwork
    optimizer : SharpnessAwareOptimizer
    rates : MemberRates or None
        None if all members have the same learning rate and weight decay.
    """

    def __init__(self, sessions):
        self.sessions = sessions
        net = sessions[0].net
        self.device = torch.device(net.device)
        self.label_smoothing = net.criterion_.label_smoothing
        weights = [session.weights() for session in sessions]
        self.network = stacked_network(net.module_, weights, self.device)
        self.optimizer = _stacked_optimizer(sessions, self.network)
        groups = [session.options() for session in sessions]
        lr = [group["initial_lr"] for group in groups]
        weight_decay = [group.get("weight_decay", 0.0) for group in groups]
        self.rates = None
        if len(set(lr)) > 1 or len(set(weight_decay)) > 1:
            self.rates = MemberRates(self.optimizer, lr, weight_decay)

    def __len__(self):
        return len(self.sessions)

    def member_lr(self, member: int) -> float:
        """Return the current learning rate of a member."""
        factor = 1.0 if self.rates is None else self.rates.lr[member]
        return factor * float(self.optimizer.param_groups[0]["lr"])

    def descend(self):
        """Make a step of the base optimizer along ``.grad``."""
        if self.rates is not None:
            self.rates.descend()
        else:
            self.optimizer.descend()

    def standardize(self, x):
        """Return samples (N, F), standardised as by the first member."""
        return self.sessions[0].net.module_.standardize(x).flatten(1)

    def write_weights(self, members):
        """Copy the stacked weights of some members into their modules."""
        for i in members:
            self.sessions[i].take_weights(self.network.member_weights(i))

    def read_weights(self, members):
        """Copy weights and options that callbacks may have set into the stack."""
        with_callbacks = [i for i in members if self.sessions[i].net.callbacks_]
        for i in with_callbacks:
            self.network.take_weights(i, self.sessions[i].weights())
        if with_callbacks:
            self._read_options()

    def write_back(self, members):
        """Copy weights and optimizer state of some members into their nets."""
        self.write_weights(members)
        stacked = self.optimizer.state_dict()
        for i in members:
            groups = self.sessions[i].optimizer_state()["param_groups"]
            for group in groups:
                group["lr"] = self.member_lr(i)
            own = unstack_optimizer(stacked, self.network, i, groups)
            self.sessions[i].take_optimizer(own)

    def read_rho(self):
        """Copy the radius of each member's optimizer into the stack."""
        (group,) = self.optimizer.param_groups
        rho = rho_name(group)
        radii = [float(session.options()[rho]) for session in self.sessions]
        self.radii = group[rho] = torch.tensor(radii, device=self.device)

    def set_radii(self, is_sam):
        """Set the radii for a batch: zero for members that do not get SAM in it."""
        (group,) = self.optimizer.param_groups
        group[rho_name(group)] = self.radii
        if is_sam.any() and not is_sam.all():
            group[rho_name(group)] = self.radii * torch.as_tensor(is_sam).to(self.radii)

    def _read_options(self):
        """Copy options that callbacks may have set in the members' optimizers.

        The learning rate is not among them: the schedule sets it before every step.
        """
        (group,) = self.optimizer.param_groups
        self.read_rho()
        shared = group.keys() - {"params", "lr", "stacked", rho_name(group), *KERNELS}
        if self.rates is not None:
            own = [session.options()["weight_decay"] for session in self.sessions]
            self.rates.set_weight_decay(own)
            shared -= {"initial_lr", "weight_decay"}
        training = [
            session.options() for session in self.sessions if not session.stopped
        ]
        for name in shared if training else ():
            values = [options[name] for options in training]
            if any(value != values[0] for value in values):
                raise UnsupportedEngineError(
                    f"Callbacks have set {name} of the members' optimizers to "
                    f"different values, {values}, but stacked members share one step. "
                    "Use engine='skorch'."
                )
            group[name] = values[0]


def stacked_network(module, states, device) -> StackedNetwork:
    """Return the network of members with such a module, from their states."""
    layers = stackable_layers(module.module)
    assert layers is not None  # the engine has checked the module
    layers = [(f"module.{name}", layer) for name, layer in layers]
    return StackedNetwork(layers, states, device)


def _stacked_optimizer(sessions, network):
    """Return one optimizer over the stacked weights, with the members' states."""
    net = sessions[0].net
    _, options = net.get_params_for_optimizer("optimizer", [])
    options.pop("params", None)
    rho = [session.segment.rho[session.state.index] for session in sessions]
    options |= {"rho": rho, "stacked": True} | _fused(options)
    optimizer = net.optimizer([network.weights], **options)
    states = [session.optimizer_state() for session in sessions]
    stacked = stack_optimizer(states, network)
    own = optimizer.state_dict()["param_groups"]
    for group, member in zip(own, stacked["param_groups"]):
        group["initial_lr"] = member["initial_lr"]
    optimizer.load_state_dict({**stacked, "param_groups": own})
    return optimizer


def _fused(options):
    """Return the option for a fused step, which is twice as fast on a CPU."""
    base = options.get("base_optimizer", torch.optim.SGD)
    is_set = any(options.get(name) is not None for name in KERNELS)
    if is_set or "fused" not in inspect.signature(base).parameters:
        return {}
    if options.get("differentiable") or options.get("capturable"):
        return {}
    return {"fused": True}


def stacked_sessions(net, members, data, segment) -> list:
    """Return a session for each member; all but the first without a net if possible."""
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

    It reads the settings from the net of the first member, which has no callbacks, no
    average and no pruned weights. Restoring a net takes longer than an epoch of a small
    network.
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

    def begin_segment(self, segment, report=NO_REPORT):
        """Continue with the segment after the last one; ``rho`` may differ."""
        self.segment, self.report = segment, report
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

    def begin_epoch(self, epoch):
        """Start the timer of the epoch."""
        self._started = time.perf_counter()

    def end_epoch(self, epoch, loss, lr):
        """Write the record of the epoch, and report it."""
        check_finite(loss, self.state.index, epoch, lr)
        record = {"epoch": len(self._history) + 1, "train_loss": loss, "lr": lr}
        record |= {"phase": self.segment.name}
        record |= {"dur": time.perf_counter() - self._started}
        self._history.append(record)
        self.stopped |= self.report.epoch(self.state.index, record)

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


def allows_own_rates(net) -> bool:
    """Whether stacked members may differ in learning rate and weight decay."""
    base, bound = base_optimizer(net)
    maximize = getattr(net, "optimizer__maximize", bound.get("maximize", False))
    return base in OPTIMIZERS and not maximize


class MemberRates:
    """Makes the step of a stacked optimizer with the rates of each member.

    torch's optimizers take one learning rate and one weight decay. Here they make a
    step of rate one without weight decay, which is then multiplied by the rates.

    Parameters
    ----------
    optimizer : SharpnessAwareOptimizer
        Of the stacked weights, one tensor (M, P). Its learning rate becomes the factor
        of all rates; its weight decay becomes zero.
    lr, weight_decay : list of float
        Of each member.
    """

    def __init__(self, optimizer, lr, weight_decay):
        self.optimizer, self.lr = optimizer, lr
        (self.group,) = optimizer.param_groups
        (self.weights,) = self.group["params"]
        self.group["initial_lr"], self.group["weight_decay"] = 1.0, 0.0
        self.before = torch.empty_like(self.weights)
        self.is_decoupled = bool(self.group.get("decoupled_weight_decay"))
        self._lr = self._column(lr)
        self.set_weight_decay(weight_decay)

    def set_weight_decay(self, weight_decay: list[float]) -> None:
        """Set the weight decay of each member."""
        self.decays = any(weight_decay)
        self._weight_decay = self._column(weight_decay)

    @torch.no_grad()
    def descend(self) -> None:
        """Make a step of the base optimizer along ``.grad``."""
        weights, factor = self.weights, self.group["lr"]
        rates = self._lr * factor
        if self.decays and not self.is_decoupled:
            weights.grad.add_(weights * self._weight_decay)
        self.before.copy_(weights)
        self.group["lr"] = 1.0
        self.optimizer.descend()
        self.group["lr"] = factor
        weights.sub_(self.before).mul_(rates)
        if self.decays and self.is_decoupled:
            self.before.mul_(1 - rates * self._weight_decay)
        weights.add_(self.before)

    def _column(self, values):
        """Return one value (M, 1) for each row of the weights."""
        weights = self.weights
        return torch.tensor(values, dtype=weights.dtype, device=weights.device)[:, None]
