"""One step of all members, captured as a CUDA graph and replayed."""

from contextlib import contextmanager

import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.engine.graph.fused_norms import FusedNorms
from sklearn_sharpbalance.engine.graph.layers import BatchCounters, CastWeights
from sklearn_sharpbalance.members.step import training_step
from sklearn_sharpbalance.runtime.devices import autocast, capture_graph
from sklearn_sharpbalance.runtime.torch_internals import (
    TRACKING_NORM,
    foreach_copy_,
    foreach_mul_,
)

__all__ = ["GraphedStep"]

GRAPH_SETTINGS = ("lr", "capturable", "fused", "foreach")  # changed for the capture
INITIAL_STATE = {"mu_product": 1.0}  # initial values that are not zero (NAdam)


class GraphedStep:
    """One step of all members, on their batches at the current position of the feed."""

    def __init__(self, sessions, feed, segment):
        self.feed = feed
        device = feed.source.device
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros(len(sessions), device=device)
        self.n_steps = 0
        self.members = [
            _MemberStep(session, i, self, segment) for i, session in enumerate(sessions)
        ]
        # By the kind of step of each member, see _MemberStep.kind.
        self.graphs: dict[tuple, torch.cuda.CUDAGraph] = {}
        self._captured_options = None
        streams = sessions if device.type == "cuda" else []
        self.streams = [torch.cuda.Stream(device) for _ in streams]

    @property
    def fused(self):
        """Whether all members compute with fused layers."""
        return all(member.norms.fused is not None for member in self.members)

    def run(self, first, is_sam):
        """Make updates of every member, from position ``first`` on.

        ``is_sam`` (n_steps, number of members) tells whose batches get SAM.
        """
        self.position.fill_(first)
        for member in self.members:
            member.module.train()
            member.counters.n_passes += len(is_sam)
        for place, own in enumerate(is_sam.tolist(), start=first):
            for member, gets_sam in zip(self.members, own):
                member.is_sam = gets_sam
            if self.streams:
                self._graph(place).replay()
                for member in self.members:
                    member.count()
            else:
                self._step()
        self.n_steps += len(is_sam)

    def losses(self):
        """Return the mean loss of each member since the last call."""
        losses = (self.total / self.n_steps).tolist()
        self.total.zero_()
        self.n_steps = 0
        return losses

    @contextmanager
    def detached(self):
        """Restore modules and optimizers for a block that calls callbacks."""
        self.detach()
        with torch.compiler.set_stance("force_eager"):
            yield
        self.attach()

    def detach(self):
        """Restore the modules and optimizers; keep the graphs."""
        for member in self.members:
            member.detach()

    def attach(self):
        """Prepare modules and optimizers to replay the graphs.

        Delete the graphs if options of the optimizers have changed, which are constants
        of a graph.
        """
        for member in self.members:
            member.attach()
        if self.graphs and self._options() != self._captured_options:
            self.graphs = {}

    def close(self):
        """Restore modules and optimizers, and free the graphs."""
        for member in self.members:
            member.detach()
            member.optimizer.zero_grad()
        self.graphs = {}

    def compile(self):
        """Run the modules through torch.compile from the next step on."""
        for member in self.members:
            member.module.compile(dynamic=False)
        self.graphs = {}

    def _options(self):
        return [member.options() for member in self.members]

    def _graph(self, place):
        """Return the graph of the step at a position; capture it if it is new."""
        kind = tuple(member.kind() for member in self.members)
        if kind not in self.graphs:
            self.graphs[kind] = self._capture(place)
            self._captured_options = self._options()
        return self.graphs[kind]

    def _capture(self, place):
        """Capture a step; undo the updates of the warm-up that a capture needs."""
        before = [member.snapshot() for member in self.members]
        counts = [member.optimizer.count for member in self.members]
        total = self.total.clone()

        def reset_position():
            self.position.fill_(place)
            for member, count in zip(self.members, counts):
                member.optimizer.count = count

        with _choosing_algorithms():
            graph, _ = capture_graph(
                self._step,
                self.position.device,
                before_each=reset_position,
                pool=next((made.pool() for made in self.graphs.values()), None),
            )
        for member, values in zip(self.members, before):
            member.restore(values)
        reset_position()
        self.total.copy_(total)
        return graph

    def _step(self):
        """Make one update of every member, each on its own stream."""
        if not self.streams:
            for member in self.members:
                member.step()
        else:
            current = torch.cuda.current_stream()
            for member, stream in zip(self.members, self.streams):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    member.step()
            for stream in self.streams:
                current.wait_stream(stream)
        self.position += 1


class _MemberStep:
    """The step of one member, on tensors whose memory does not change."""

    def __init__(self, session, i, shared, segment):
        self.net, self.i, self.shared, self.segment = session.net, i, shared, segment
        self.module, self.optimizer = session.net.module_, session.net.optimizer_
        self.smoothing = session.net.criterion_.label_smoothing
        self.is_sam = False  # set before each step
        self.device = shared.position.device
        self.counters = BatchCounters(self.module)
        self.statistics = [
            buffer
            for layer in self.module.modules()
            if isinstance(layer, TRACKING_NORM)
            for buffer in layer.buffers(recurse=False)
        ]
        self.saved_statistics = [buffer.clone() for buffer in self.statistics]
        weights = dict(self.module.named_parameters())
        self.masked = [weights[name] for name in session.masks]
        self.masks = {id(weights[k]): mask for k, mask in session.masks.items()}
        self.cast = CastWeights(self.module, segment.precision)
        self.norms = FusedNorms(self.module, wanted=segment.compile is None)
        self._plain_groups = [dict(group) for group in self.optimizer.param_groups]
        self._captured_groups = None  # options of the graph, while detached
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["initial_lr"]), device=self.device)
            if "capturable" in group:
                group["capturable"] = True
            elif "fused" in group:
                group["fused"], group["foreach"] = True, False
        _count_on_device(self.optimizer)

    def step(self):
        """Update the member on the batch at the shared position."""
        x, y, weight = self._batch()

        def loss_of_batch():
            self.cast.push()
            with autocast(self.segment.precision, self.device, cache=False):
                logits = self.module(x)
            losses = cross_entropy(
                logits.float(), y, reduction="none", label_smoothing=self.smoothing
            )
            return (losses * weight).sum()

        def backward(loss):
            loss.backward()
            self.cast.pull()
            self._mask([(w, w.grad) for w in self.masked if w.grad is not None])

        loss = training_step(
            self.optimizer,
            loss_of_batch,
            self.is_sam,
            grad_scale=weight.sum(),
            module=False,
            backward=backward,
            perturbed_pass=self._statistics_restored,
            descend=self._descend,
        )
        self.shared.total[self.i] += loss

    def kind(self):
        """Return what a graph of the next step depends on; LookSAM skips passes."""
        return self.is_sam, self.is_sam and self.optimizer.perturbs

    def count(self):
        """Count a replayed step; a step that runs in Python is counted there."""
        if self.is_sam:
            self.optimizer.advance()

    def _batch(self):
        """Return samples, labels and weights at the position; set the learning rate."""
        feed, position = self.shared.feed, self.shared.position
        used = slice(feed.segment.sizes.width_of(self.is_sam))
        x, y, weight = (
            buffer[self.i].index_select(0, position)[0, used]
            for buffer in (feed.x, feed.y, feed.weight)
        )
        rate = feed.lr[self.i].index_select(0, position)[0]
        for group in self.optimizer.param_groups:
            group["lr"].copy_(rate)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y, weight

    def _descend(self):
        """Make a step of the optimizer and set pruned weights to zero."""
        self.optimizer.descend()
        with torch.no_grad():
            self._mask([(weight, weight) for weight in self.masked])

    def _mask(self, pairs):
        """Set entries of pruned weights to zero, given pairs of weight and tensor."""
        tensors, masks = [], []
        for weight, tensor in pairs:
            mask = self.masks.get(id(weight))
            if mask is not None:
                tensors.append(tensor)
                masks.append(mask)
        if tensors:
            foreach_mul_(tensors, masks)

    @contextmanager
    def _statistics_restored(self):
        """Undo the updates of BatchNorm statistics in the perturbed pass.

        Frozen statistics would need a second compiled version of every layer.
        """
        if self.statistics:
            foreach_copy_(self.saved_statistics, self.statistics)
        yield
        if self.statistics:
            foreach_copy_(self.statistics, self.saved_statistics)

    def snapshot(self):
        """Copy everything that a step changes."""
        # Not the weights of the layers, which may be cast copies.
        weights = [w for group in self.optimizer.param_groups for w in group["params"]]
        weights += self.module.buffers()
        return (
            [(tensor, tensor.detach().clone()) for tensor in weights],
            {id(t): t.clone() for _, t in _state_tensors(self.optimizer)},
        )

    @torch.no_grad()
    def restore(self, snapshot):
        """Undo steps in place; reset optimizer states that are newer."""
        weights, state = snapshot
        for tensor, value in weights:
            tensor.copy_(value)
        for name, tensor in _state_tensors(self.optimizer):
            if id(tensor) in state:
                tensor.copy_(state[id(tensor)])
            else:
                tensor.fill_(INITIAL_STATE.get(name, 0.0))

    def options(self):
        """Return the options of the optimizer that are constants of a graph."""
        others = {"params", *GRAPH_SETTINGS}
        groups = self.optimizer.param_groups
        return [{key: group[key] for key in group.keys() - others} for group in groups]

    def detach(self):
        """Restore module and options; the learning rate is that of the last step."""
        if self._captured_groups is not None:
            return
        self.norms.close()
        self.cast.close()
        self.counters.close()
        self._captured_groups = []
        for group, plain in zip(self.optimizer.param_groups, self._plain_groups):
            captured = {key: group[key] for key in GRAPH_SETTINGS if key in plain}
            self._captured_groups.append(captured)
            group.update({key: plain[key] for key in captured}, lr=float(group["lr"]))

    def attach(self):
        """Put the tensors of the graph back into module and options."""
        if self._captured_groups is None:
            return
        self.norms.open()
        self.cast.open()
        self.counters.open()
        for group, captured in zip(self.optimizer.param_groups, self._captured_groups):
            group.update(captured)
        self._captured_groups = None


@contextmanager
def _choosing_algorithms():
    """Let cuDNN measure its algorithms for each shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _count_on_device(optimizer):
    """Move the step counts of a loaded state to the device, where a capture is."""
    for weight, entries in optimizer.state.items():
        if isinstance(entries.get("step"), torch.Tensor):
            entries["step"] = entries["step"].to(weight.device)


def _state_tensors(optimizer):
    """Return names and tensors of the states of both optimizers."""
    own = getattr(optimizer, "_own_state", {})
    return [
        (name, value)
        for entries in [*optimizer.state.values(), *own.values()]
        for name, value in entries.items()
        if isinstance(value, torch.Tensor)
    ]
