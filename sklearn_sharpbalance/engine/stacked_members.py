"""Members whose weights and optimizers are stacked along a leading member axis."""

import inspect

import torch

from sklearn_sharpbalance.engine.member_rates import MemberRates
from sklearn_sharpbalance.engine.stacking import (
    StackedNetwork,
    layers_to_stack,
    stack_optimizer,
    unstack_optimizer,
)
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members.session import rho_name

__all__ = ["StackedMembers"]

KERNELS = ("fused", "foreach")  # options for how a step is computed


class StackedMembers:
    """One network and one optimizer for the members of several sessions.

    Parameters
    ----------
    sessions : list of MemberSession
        Their segments may differ in ``rho``, their nets in the statistics of the
        input, in the learning rate and in the weight decay.

    Attributes
    ----------
    device : torch.device
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
        self.network = StackedNetwork(
            layers_to_stack(net.module_.module, "module."),
            [session.weights() for session in sessions],
            self.device,
        )
        rho = [session.segment.rho[session.state.index] for session in sessions]
        self.optimizer = _stacked_optimizer(sessions, self.network, rho)
        self.rates = _member_rates(sessions, self.optimizer)

    def __len__(self):
        return len(self.sessions)

    def member_lr(self, member: int) -> float:
        """Return the current learning rate of a member."""
        if self.rates is not None:
            return self.rates.member_lr(member)
        return float(self.optimizer.param_groups[0]["lr"])

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
        for i in members:
            session = self.sessions[i]
            if session.net.callbacks_:
                self.network.take_weights(i, session.weights())
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
        group[rho] = torch.tensor(radii, device=self.device)

    def _read_options(self):
        """Copy options that callbacks may have set in the members' optimizers.

        The learning rate is not among them: the schedule sets it before every step.
        """
        training = [session for session in self.sessions if not session.stopped]
        if not any(session.net.callbacks_ for session in training):
            return
        (group,) = self.optimizer.param_groups
        own = [session.options() for session in self.sessions]
        self.read_rho()
        rho = rho_name(group)
        shared = group.keys() - {"params", "lr", "stacked", rho, *KERNELS}
        if self.rates is not None:
            self.rates.set_weight_decay([options["weight_decay"] for options in own])
            shared -= {"initial_lr", "weight_decay"}
        for name in shared:
            values = [session.options()[name] for session in training]
            if any(value != values[0] for value in values):
                raise UnsupportedEngineError(
                    f"Callbacks have set {name} of the members' optimizers to "
                    f"different values, {values}, but stacked members share one step. "
                    "Use engine='skorch'."
                )
            group[name] = values[0]


def _stacked_optimizer(sessions, network, rho):
    """Return one optimizer over the stacked weights, with the members' states."""
    net = sessions[0].net
    _, options = net.get_params_for_optimizer("optimizer", [])
    options.pop("params", None)
    options |= {"rho": rho, "stacked": True} | _fused(options)
    optimizer = net.optimizer([network.weights], **options)
    states = [session.optimizer_state() for session in sessions]
    stacked = stack_optimizer(states, network)
    own = optimizer.state_dict()["param_groups"]
    for group, member in zip(own, stacked["param_groups"]):
        group["initial_lr"] = member["initial_lr"]
    optimizer.load_state_dict({**stacked, "param_groups": own})
    return optimizer


def _member_rates(sessions, optimizer):
    """Return the rates of the members if they differ, else None."""
    groups = [session.options() for session in sessions]
    lr = [group["initial_lr"] for group in groups]
    weight_decay = [group.get("weight_decay", 0.0) for group in groups]
    if len(set(lr)) == len(set(weight_decay)) == 1:
        return None
    return MemberRates(optimizer, lr, weight_decay)


def _fused(options):
    """Return the option for a fused step, which is twice as fast on a CPU."""
    base = options.get("base_optimizer", torch.optim.SGD)
    is_set = any(options.get(name) is not None for name in KERNELS)
    if is_set or "fused" not in inspect.signature(base).parameters:
        return {}
    if options.get("differentiable") or options.get("capturable"):
        return {}
    return {"fused": True}
