"""All members of a process in one batched computation, for MLP-like members."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.data.batches import epoch_batches
from sklearn_sharpbalance.data.training_data import as_tensor
from sklearn_sharpbalance.engine.base import Engine
from sklearn_sharpbalance.engine.callback_rng import CallbackDraws
from sklearn_sharpbalance.engine.stacking import (
    StackedNetwork,
    in_step,
    layers_to_stack,
    stack_optimizer,
    stacking_obstacle,
    unstack_optimizer,
)
from sklearn_sharpbalance.engine.support import UNSEEN, meta_module, shared_refusal
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members.own_settings import different_settings, own_nets
from sklearn_sharpbalance.members.session import MemberSession
from sklearn_sharpbalance.members.step import balanced_step, set_learning_rate
from sklearn_sharpbalance.optim import OPTIMIZERS
from sklearn_sharpbalance.runtime.precision import autocast, tf32
from sklearn_sharpbalance.runtime.rng import epoch_rng

__all__ = ["StackedEngine"]


class StackedEngine(Engine):
    """Trains all members at once, as batched matrix products."""

    name = "stacked"

    def __init__(self):
        super().__init__()
        self._runs: dict[str, _StackedRun] = {}  # by device, for the next segment

    def __getstate__(self):
        # Stacked weights belong to their process, and to no result.
        return self.__dict__ | {"_runs": {}}

    @classmethod
    def refusal(cls, net, data, training):
        """Why these members cannot be stacked; None if they can."""
        if training.transform is not None:
            return "train_transform draws from one RNG per member"
        if training.precision == "fp16":
            return "fp16 scales each member's loss by itself"
        if not isinstance(data.X, np.ndarray):
            return "X is not one array"
        apart = different_settings(net)
        if apart:
            return f"members differ in {', '.join(apart)}, and share one step"
        net = own_nets(net)[0]
        if net.optimizer not in OPTIMIZERS.values():
            return f"{net.optimizer.__name__} may take stacked members for one"
        return shared_refusal(net) or _module_refusal(net)

    def run_phase(self, net, states, data, phase, masks, on_epoch=None):
        """Train all members side by side.

        The stacked weights of one segment are used for the next if that starts from
        the returned states.
        """
        run = self._runs.pop(str(net.device), None)
        if run is not None and run.leads_to(states, data, phase, masks):
            run.resume(phase, on_epoch)
            return self._train(run, net)
        groups = in_step(states)
        if len(groups) == 1:
            return self._train(_open(net, states, data, phase, masks, on_epoch), net)
        results = list(states)
        for group in groups:
            own = [states[i] for i in group]
            run = _open(net, own, data, phase, masks[group], on_epoch)
            for i, state in zip(group, run.train()):
                results[i] = state
        return results

    def _train(self, run, net):
        """Train all members by one run, and keep it for the next segment."""
        results = run.train()
        if not run.phase.last:
            self._runs[str(net.device)] = run
        return results

    def release(self):
        """Free the stacked weights that were kept for the next segment."""
        self._runs = {}


def _open(net, states, data, phase, masks, on_epoch):
    """A run of members that share one step."""
    sessions = [MemberSession(net, state, data, phase, on_epoch) for state in states]
    return _StackedRun(sessions, data, phase, masks)


class _StackedRun:
    """The stacked weights, optimizer and data of members that train together."""

    def __init__(self, sessions, data, phase, masks):
        self.sessions, self.phase, self.masks = sessions, phase, masks
        self.data = data
        self.results = [session.state for session in sessions]
        net = sessions[0].net
        self.device = torch.device(net.device)
        self.smoothing = net.criterion_.label_smoothing
        inner = net.module_.module
        layers = layers_to_stack(inner, "module.")
        states = [session.net.module_.state_dict() for session in sessions]
        self.network = StackedNetwork(layers, states, self.device)
        self.optimizer = _stacked_optimizer(sessions, self.network, phase)
        with torch.no_grad():  # once for the phase, not once for every batch
            X = net.module_.standardize(as_tensor(data.X, self.device))
        self.X = X.flatten(1)
        self.y = torch.as_tensor(data.y, device=self.device)
        self.weight = (
            None
            if data.weight is None
            else torch.as_tensor(data.weight, device=self.device)
        )
        self.gradient_masks = self._stacked_masks()
        self.frozen = [session.stopped for session in sessions]
        self.draws = CallbackDraws(self.device)

    def leads_to(self, states, data, phase, masks):
        """Whether a segment continues where this run stopped."""
        return (
            states is self.results
            and data is self.data
            and phase.continues(self.phase)
            and np.array_equal(masks, self.masks)
        )

    def resume(self, phase, on_epoch):
        """Continue with the next segment."""
        self.phase = phase
        for session in self.sessions:
            session.phase, session.on_epoch = phase, on_epoch
        self.frozen = [session.stopped for session in self.sessions]

    def train(self):
        """Train all members through the segment; returns their states."""
        stopped_before = [session.stopped for session in self.sessions]
        with self.draws.own(self.sessions), tf32(self.phase.precision):
            for epoch in range(self.phase.start, self.phase.stop):
                if all(session.stopped for session in self.sessions):
                    break
                self.epoch(epoch)
        self.write_back(range(len(self.sessions)))
        self.results = [
            result if stopped else session.finish()
            for result, stopped, session in zip(
                self.results, stopped_before, self.sessions
            )
        ]
        return self.results

    def _stacked_masks(self):
        """Masks of pruned weights with a member axis, by the names of the weights."""
        masks = {}
        for name, weight in self.network.params.items():
            own = [session.masks.get(name) for session in self.sessions]
            if any(mask is not None for mask in own):
                full = torch.ones_like(weight[0])
                masks[name] = torch.stack([full if m is None else m for m in own])
        return masks

    def backward(self, loss):
        """Gradients of a loss; pruned weights get none."""
        loss.backward()
        self.prune({key: w.grad for key, w in self.network.params.items()})

    def prune(self, gradients: dict[str, Any]):
        """Make the gradients of pruned weights zero."""
        if self.gradient_masks:
            grads = [gradients[name] for name in self.gradient_masks]
            torch._foreach_mul_(grads, list(self.gradient_masks.values()))

    def descend(self):
        """Step of the optimizer; what callbacks made of pruned weights is undone."""
        self.optimizer.descend()
        if self.gradient_masks:
            with torch.no_grad():
                held = [self.network.params[name] for name in self.gradient_masks]
                torch._foreach_mul_(held, list(self.gradient_masks.values()))

    def epoch(self, epoch):
        """One epoch of all members."""
        seeds = [session.state.seed for session in self.sessions]
        dealt = [
            epoch_batches(mask, self.phase.sizes, epoch_rng(seed, epoch))
            for mask, seed in zip(self.masks, seeds)
        ]
        rows = torch.as_tensor(np.stack([d.indices for d in dealt], axis=1))
        share = torch.as_tensor(np.stack([d.share for d in dealt], axis=1))
        rows, share = rows.to(self.device), share.to(self.device)  # (T, M, B)
        running = [s for s in self.sessions if not s.stopped]
        for session in running:
            self.draws.begin_epoch(session, epoch)
        self.read_weights(running)
        total = torch.zeros(len(self.sessions), device=self.device)
        for t in range(len(rows)):
            set_learning_rate(self.optimizer, self.phase.lr_factor(epoch, t))
            total += self.batch(rows[t], share[t])
        self.end_epoch(epoch, running, (total / len(rows)).tolist())

    def batch(self, rows, share):
        """One update of all members; returns their losses (M,)."""
        x, y = self.X[rows], self.y[rows]  # (M, B, F), (M, B)
        weight = share if self.weight is None else share * self.weight[rows]
        n_sam = self.phase.sizes.sam
        losses = []  # of each pass

        def loss_of(part, n_first=None):
            with autocast(self.phase.precision, self.device):
                logits = self.network(x[:, part], n_first)  # (M, b, C)
            each = cross_entropy(
                logits.float().flatten(0, 1),
                y[:, part].flatten(),
                reduction="none",
                label_smoothing=self.smoothing,
            )
            loss = (each.view(len(x), -1) * weight[:, part]).sum(1)  # (M,)
            losses.append(loss.detach())
            return loss.sum()

        def both_parts():
            loss = loss_of(slice(None), n_sam)
            self.backward(loss)
            normal = self.network.second_gradients()
            self.prune(normal)
            return loss, [(self.network.params[key], g) for key, g in normal.items()]

        balanced_step(
            self.optimizer,
            loss_of,
            n_sam,
            share.shape[1],
            sam_share=weight[:, :n_sam].sum(1),
            both_parts=both_parts,
            module=False,
            backward=self.backward,
            descend=self.descend,
        )
        if self.optimizer.clean_pass:
            return losses[0]  # of the whole batch, before the update
        return sum(losses[1:], start=losses[0])  # each part was passed once

    def end_epoch(self, epoch, running, losses):
        """Write records and call callbacks; keep members that stop as they are."""
        if any(session.looks_at_weights for session in running):
            self.write_weights(running)
        lr = float(self.optimizer.param_groups[0]["lr"])
        for i, session in enumerate(self.sessions):
            if session in running:
                self.draws.end_epoch(session, epoch, losses[i], lr)
        self.read_weights(running)
        self.write_back(i for i, s in enumerate(self.sessions) if s.stopped)

    def write_weights(self, sessions):
        """Copy the stacked weights into the members' modules."""
        for i, session in enumerate(self.sessions):
            if session in sessions:
                weights = self.network.member_weights(i)
                session.net.module_.load_state_dict(weights, strict=False)

    def read_weights(self, sessions):
        """Take over what callbacks may have made of the weights, and of options."""
        for i, session in enumerate(self.sessions):
            if session in sessions and session.net.callbacks_:
                self.network.take_weights(i, session.net.module_.state_dict())
        take_options(self.optimizer, self.sessions)

    def write_back(self, members):
        """Copy weights and optimizer state into members that were not frozen yet."""
        stacked = self.optimizer.state_dict()
        for member in members:
            if self.frozen[member]:
                continue
            self.frozen[member] = True
            session = self.sessions[member]
            self.write_weights([session])
            groups = session.net.optimizer_.state_dict()["param_groups"]
            for group, trained in zip(groups, stacked["param_groups"]):
                group["lr"] = trained["lr"]
            state = unstack_optimizer(stacked, member, groups)
            session.net.optimizer_.load_state_dict(state)


def _stacked_optimizer(sessions, network, phase):
    """One optimizer over the stacked weights in the members' joint state."""
    net = sessions[0].net
    _, options = net.get_params_for_optimizer("optimizer", [])
    options.pop("params", None)
    rho = [phase.rho[session.state.index] for session in sessions]
    options |= {"rho": rho, "stacked": True}
    optimizer = net.optimizer(list(network.params.values()), **options)
    states = [session.net.optimizer_.state_dict() for session in sessions]
    stacked = stack_optimizer(states)
    own = optimizer.state_dict()["param_groups"]
    for group, member in zip(own, stacked["param_groups"]):
        group["initial_lr"] = member["initial_lr"]
    optimizer.load_state_dict({**stacked, "param_groups": own})
    return optimizer


def take_options(optimizer, sessions):
    """Take over what callbacks may have made of the members' optimizer options.

    The learning rate is not among them: the schedule sets it before every step.
    """
    if not any(s.net.callbacks_ and not s.stopped for s in sessions):
        return
    (group,) = optimizer.param_groups
    own = [session.net.optimizer_.param_groups[0] for session in sessions]
    training = [g for g, session in zip(own, sessions) if not session.stopped]
    rho = "sam_rho" if "sam_rho" in group else "rho"
    group[rho] = torch.tensor([float(g[rho]) for g in own], device=group[rho].device)
    for name in group.keys() - {"params", "lr", "stacked", rho}:
        values = [g[name] for g in training]
        if any(value != values[0] for value in values):
            raise UnsupportedEngineError(
                f"Callbacks have set {name} of the members' optimizers to different "
                f"values, {values}, but stacked members share one step. Use "
                "engine='skorch'."
            )
        group[name] = values[0]


def _module_refusal(net):
    module, inner = meta_module(net), net.module__module
    if module is None:
        return UNSEEN
    obstacle = stacking_obstacle(module)
    if obstacle is None:
        return None
    name = getattr(inner, "__name__", type(inner).__name__)
    return f"{name} is not a chain of Linear layers and activations: {obstacle}"
