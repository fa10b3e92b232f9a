"""The engine that trains MLP-like members in one batched computation."""

from contextlib import nullcontext

import numpy as np
import torch

from sklearn_sharpbalance.autodiff import Rows, in_chunks
from sklearn_sharpbalance.data.batches import BatchLayout
from sklearn_sharpbalance.data.training_data import (
    ArrayRows,
    as_tensor,
    is_on_disk,
)
from sklearn_sharpbalance.engine.base import Engine, Team, TeamRun
from sklearn_sharpbalance.engine.stacked.members import (
    StackedMembers,
    allows_own_rates,
    stacked_network,
    stacked_sessions,
)
from sklearn_sharpbalance.engine.stacked.network import check_in_step, stacking_obstacle
from sklearn_sharpbalance.engine.stacked.passes import StackedPass
from sklearn_sharpbalance.engine.support import (
    NOT_INSPECTED,
    meta_module,
    shared_refusal,
)
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.members.member_params import (
    different_settings,
    own_nets,
    own_settings,
)
from sklearn_sharpbalance.members.session import NO_REPORT
from sklearn_sharpbalance.members.state import restore
from sklearn_sharpbalance.members.step import set_learning_rate, training_step
from sklearn_sharpbalance.optim import OPTIMIZERS
from sklearn_sharpbalance.runtime.devices import AUTOCAST_DTYPES, tf32
from sklearn_sharpbalance.runtime.process import flushed_denormals
from sklearn_sharpbalance.runtime.rng import epoch_rng, random_stream
from sklearn_sharpbalance.sharpness import FisherTraceScorer

__all__ = ["StackedEngine", "StackedGroup"]

MAX_STANDARDIZED = 2**26  # bytes of samples on disk that are standardised in advance

TOGETHER = ("auto", "layer_rules")  # methods of the Fisher trace
CHUNK_NUMBERS = 2**21  # that scoring keeps at once, if that is not too few samples
MIN_CHUNK = 64


class StackedEngine(Engine):
    """Trains all members at once, as batched matrix products."""

    name = "stacked"

    @classmethod
    def refusal(cls, net, data, training):
        """Return why these members cannot be stacked; None if they can."""
        if training.precision == "fp16":
            return "fp16 scales each member's loss separately"
        if not isinstance(data.X, np.ndarray | ArrayRows):
            return "X is not one array"
        apart = set(different_settings(net))
        net = own_nets(net)[0]
        if allows_own_rates(net):
            apart -= {"lr", "optimizer__weight_decay"}
        if apart:
            return f"members differ in {', '.join(sorted(apart))}, and share one step"
        if net.optimizer not in OPTIMIZERS.values():
            return f"{net.optimizer.__name__} may treat stacked members as one"
        reason = shared_refusal(net) or _module_refusal(net)
        if reason is None and training.transform is not None:
            return "train_transform draws from one RNG per member"
        return reason

    def scores_together(self, net, scorer, precision):
        """Whether the scorer is the Fisher trace, of members with the same settings."""
        is_trace = type(scorer) is FisherTraceScorer and scorer.method in TOGETHER
        return is_trace and precision == "float32" and not own_settings(net)

    def score(self, net, members, data, scorer, precision):
        """Score all members at once if possible."""
        if not self.scores_together(net, scorer, precision):
            return super().score(net, members, data, scorer, precision)
        scores = fisher_traces(net, members, data, scorer.chunk_size)
        if not np.isfinite(scores).all():  # raise an error that names the member
            return super().score(net, members, data, scorer, precision)
        if data.weight is not None:
            scores *= data.weight.astype(np.float64) ** scorer.degree
        return scores

    def open(self, net, members, data):
        """Return a run that keeps all weights and samples on the device."""
        return TeamRun(StackedTeam, net, members, data)


def fisher_traces(net, members, data, chunk_size=None) -> np.ndarray:
    """Return what :func:`fisher_trace` does, for all members at once, (M, N)."""
    net = restore(net, members[0])
    states = [member.module for member in members]
    network = stacked_network(net.module_, states, torch.device(net.device))
    stacked_pass = StackedPass(network, net.criterion_.label_smoothing)
    rows = Rows(data.X, data.y, net.device)

    def norms(chunk):
        x, y = rows[chunk]
        x = net.module_.standardize(x).flatten(1)
        x, y = (z.expand(len(members), *z.shape) for z in (x, y))
        return stacked_pass.squared_norms(x, y).mT  # (B, M)

    if chunk_size is None:
        numbers = len(members) * sum(map(sum, network.shapes.values()))
        chunk_size = max(MIN_CHUNK, CHUNK_NUMBERS // numbers)
    with torch.no_grad(), tf32("float32"):
        return in_chunks(norms, len(rows), chunk_size).mT.cpu().double().numpy()


class StackedTeam(Team):
    """Members that share one step."""

    def __init__(self, net, members, data, segment, masks):
        super().__init__(net, members, data, segment, masks)
        check_in_step(members)
        sessions = stacked_sessions(net, members, data, segment)
        self.group = StackedGroup(sessions, masks)
        self.leaves_room = torch.device(net.device).type == "cpu"

    def can_train(self, segment, masks):
        """Whether a segment follows the last one, in the same phase or the next.

        An average of weights needs sessions with nets, see :func:`stacked_sessions`.
        """
        starts_average = self.segment.averaging is None and segment.averaging
        return not starts_average and segment.continues(self.segment, new_phase=True)

    def train(self, segment, masks, report=NO_REPORT):
        """Train all members in one computation."""
        self.segment, self.masks = segment, masks
        for session in self.group.sessions:
            session.begin_segment(segment, report)
        self.group.set_masks(masks)
        self.members = list(self.group.train())
        return self.members


class StackedGroup:
    """Stacked members, and the data they train on.

    Members may come from several ensembles: each has the data, the segment and the
    mask of its own. Their segments have the same epochs, precision, schedule and number
    of batches; ``rho`` and the number of SAM batches may differ. Before another
    segment, call ``begin_segment`` of each session, and :meth:`set_masks`.
    """

    def __init__(self, sessions, masks):
        self.sessions = sessions
        self.stack = StackedMembers(sessions)
        self.network, self.optimizer = self.stack.network, self.stack.optimizer
        self.device = self.stack.device
        self.set_masks(masks)
        self._join_data()
        self.pruning_mask = self._pruning_mask()
        dtype = AUTOCAST_DTYPES.get(self.segment.precision)
        self.stacked_pass = StackedPass(
            network=self.network,
            label_smoothing=self.stack.label_smoothing,
            dtype=dtype,
            moves=not self.optimizer.clean_pass,
        )
        self.results = [session.state for session in sessions]

    def set_masks(self, masks):
        """Set the SAM masks of the members, and what their segments depend on."""
        self.segment = self.sessions[0].segment  # for what all have in common
        sizes = [session.segment.sizes for session in self.sessions]
        width = max(own.width for own in sizes)
        self.layouts = [
            BatchLayout(mask, own, width) for mask, own in zip(masks, sizes)
        ]
        self.is_sam = np.stack([layout.is_sam for layout in self.layouts], axis=1)
        self.are_mixed = not np.all(self.is_sam == self.is_sam[:, :1])
        if self.are_mixed:
            check_mixed_steps(self.optimizer)
        self.widths = np.max([layout.widths for layout in self.layouts], axis=0)
        share = np.stack([layout.share for layout in self.layouts], axis=1)
        self.share = torch.as_tensor(share).to(self.device)  # (T, M, B)
        self.stack.read_rho()

    def _join_data(self):
        """Put the data of all members on the device, each data set once.

        They are standardised here, once for all batches, unless they stay on disk.
        """
        first_row: dict[tuple, int] = {}  # of each data set in the joined data
        self.first_rows = []  # of each member's data
        samples, labels, weights, n_rows = [], [], [], 0
        for session in self.sessions:
            data, module = session.data, session.net.module_
            statistics = (module.mean, module.scale, module.pieces)
            key = (
                id(data),
                *(t if t is None else t.cpu().numpy().tobytes() for t in statistics),
            )
            if key not in first_row:
                first_row[key] = n_rows
                n_rows += len(data)
                samples.append((data.X, module))
                labels.append(torch.as_tensor(data.y, device=self.device))
                weights.append(data.weight)
            self.first_rows.append(first_row[key])
        self.y, self.weight = _joined(labels), None
        n_bytes = 4 * data.X.size  # in float32
        self.reads_disk = (
            len(samples) == 1
            and self.device.type == "cpu"
            and is_on_disk(data.X)
            and n_bytes > MAX_STANDARDIZED
        )
        if self.reads_disk:
            self.X = as_tensor(data.X, self.device)
        else:
            self.X = _joined(
                [self._standardized(X, module) for X, module in samples]
            )  # (N, F)
        if any(weight is not None for weight in weights):
            own = [
                torch.ones(len(y)) if weight is None else torch.as_tensor(weight)
                for y, weight in zip(labels, weights)
            ]
            self.weight = _joined(own).to(self.device)

    def _standardized(self, X, module):
        on_host = self.device.type == "cpu"  # to a GPU rows are copied in blocks
        X = X[:] if isinstance(X, ArrayRows) and on_host else X
        with torch.no_grad():
            return module.standardize(as_tensor(X, self.device)).flatten(1)

    def _samples(self, rows):
        """Return standardised samples (M, B, F)."""
        if not self.reads_disk:
            return self.X[rows]
        with torch.no_grad():
            x = self.stack.standardize(self.X[rows.flatten()].contiguous())
        return x.unflatten(0, rows.shape)

    def _pruning_mask(self):
        """Return the mask (M, P) of weights that are not pruned; None if all are."""
        masks = [session.masks for session in self.sessions]
        if not any(masks):
            return None
        rows = torch.ones_like(self.network.weights, requires_grad=False)
        for i, own in enumerate(masks):
            views = self.network.views(rows[i : i + 1])
            for name, mask in own.items():
                views[name][0].copy_(mask)
        return rows

    def running(self):
        """Return positions of the members that have not stopped."""
        return [i for i, session in enumerate(self.sessions) if not session.stopped]

    def train(self):
        """Train all members through their segments and return their states."""
        segment = self.segment
        started = self.running()
        has_callbacks = any(session.net.callbacks_ for session in self.sessions)
        stream = random_stream(self.device) if has_callbacks else nullcontext()
        with stream, tf32(segment.precision):
            for epoch in range(segment.start, segment.stop):
                if not self.running():
                    break
                self.epoch(epoch)
        self.stack.write_back(self.running())
        for i in started:
            self.results[i] = self.sessions[i].finish()
        return self.results

    def epoch(self, epoch):
        """Train all members for one epoch."""
        rows = self._draw(epoch)
        running = self.running()
        for i in running:
            self.sessions[i].begin_epoch(epoch)
        self.stack.read_weights(running)
        members = [self.sessions[i].state.index for i in running]
        report = self.sessions[0].report
        total = torch.zeros(len(self.sessions), device=self.device)
        with flushed_denormals():
            for t in range(len(rows)):
                set_learning_rate(self.optimizer, self.segment.lr_factor(epoch, t))
                used = slice(self.widths[t])
                own, share = rows[t][:, used], self.share[t][:, used]
                total += self.batch(own, share, self.is_sam[t])
                report.reached(members, epoch + (t + 1) / len(rows))
        self.end_epoch(epoch, running, (total / len(rows)).tolist())

    def _draw(self, epoch):
        """Return the rows of the samples of all batches (T, M, B)."""
        rows = [
            layout.epoch(epoch_rng(session.state.seed, epoch)) + first
            for session, layout, first in zip(
                self.sessions, self.layouts, self.first_rows
            )
        ]
        return torch.as_tensor(np.stack(rows, axis=1)).to(self.device)

    def batch(self, rows, share, is_sam):
        """Make one update of all members and return their losses (M,).

        Members for which the batch is not one of SAM have a radius of zero in it.
        """
        x, y = self._samples(rows), self.y[rows]  # (M, B, F), (M, B)
        weight = share if self.weight is None else share * self.weight[rows]
        losses = []  # of each pass
        if self.are_mixed:
            self.stack.set_radii(is_sam)
        perturbs = is_sam.any()
        at_moved = perturbs and not self.optimizer.clean_pass
        if at_moved:  # the only pass is there: a plain step along its gradients
            self.optimizer.write_perturbed(self.stacked_pass.moved)

        def loss_of_batch():
            losses.append(self.stacked_pass.loss(x, y, weight, at_moved))
            return losses[-1].sum()

        training_step(
            self.optimizer,
            loss_of_batch,
            perturbs and not at_moved,
            grad_scale=weight.sum(1),
            module=False,
            backward=self.backward,
            descend=self.descend,
        )
        return losses[0]

    def backward(self, loss):
        """Compute the gradients of the last loss; those of pruned weights are zero."""
        self.stacked_pass.backward()
        self.prune(self.network.weights.grad)

    def descend(self):
        """Take a step of the optimizer; pruned weights stay zero."""
        self.stack.descend()
        self.prune(self.network.weights)

    def prune(self, rows):
        """Set entries of pruned weights to zero, in rows (M, P)."""
        if self.pruning_mask is not None:
            with torch.no_grad():
                rows.mul_(self.pruning_mask)

    def end_epoch(self, epoch, running, losses):
        """Write records, call callbacks and save the members that stop."""
        if any(self.sessions[i].reads_weights for i in running):
            self.stack.write_weights(running)
        for i in running:
            self.end_member_epoch(i, epoch, losses[i], self.stack.member_lr(i))
        self.stack.read_weights(running)
        stopped = [i for i in running if self.sessions[i].stopped]
        if stopped:
            self.stack.write_back(stopped)

    def end_member_epoch(self, i, epoch, loss, lr):
        """Write the record of one member and call its callbacks."""
        self.sessions[i].end_epoch(epoch, loss, lr)


def check_mixed_steps(optimizer):
    """Raise if only some of the stacked members cannot make a step with SAM."""
    if optimizer.own_state_names:
        raise UnsupportedEngineError(
            f"{type(optimizer).__name__} keeps a state of its own in steps with SAM, "
            "and stacked members share their steps, but only some members have SAM "
            "samples. Use engine='skorch', or a selection that gives each member "
            "samples of both kinds."
        )


def _joined(tensors):
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _module_refusal(net):
    """Return why the module cannot be stacked; None if it can."""
    module, inner = meta_module(net), net.module__module
    if module is None:
        return NOT_INSPECTED
    obstacle = stacking_obstacle(module)
    if obstacle is None:
        return None
    name = getattr(inner, "__name__", type(inner).__name__)
    return f"{name} is not a chain of Linear layers and activations: {obstacle}"
