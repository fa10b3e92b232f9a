"""One step of all members, captured as a CUDA graph and replayed."""

from contextlib import contextmanager

import torch
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance.autodiff.graphs import capture_graph
from sklearn_sharpbalance.engine.graph.batch_counters import BatchCounters
from sklearn_sharpbalance.engine.graph.cast_weights import CastWeights
from sklearn_sharpbalance.engine.graph.fused_norms import FusedNorms
from sklearn_sharpbalance.engine.graph.split_pass import SplitPass
from sklearn_sharpbalance.engine.stacking import is_hooked
from sklearn_sharpbalance.members.step import balanced_step
from sklearn_sharpbalance.runtime.precision import autocast

__all__ = ["GraphedStep"]

GRAPH_SETTINGS = ("lr", "capturable", "fused", "foreach")  # changed for the capture
INITIAL_STATE = {"mu_product": 1.0}  # of optimizers where it is not zero: NAdam's


class GraphedStep:
    """The step of all members on the batch that the feed's counter points to.

    Parameters
    ----------
    sessions : list of MemberSession
    feed : EpochFeed
        Must be filled before :meth:`run`.
    segment : Segment
    """

    def __init__(self, sessions, feed, segment):
        self.feed = feed
        device = feed.source.device
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.total = torch.zeros(len(sessions), device=device)
        self.n_steps = 0
        self.members = [
            _MemberStep(session, i, self, segment) for i, session in enumerate(sessions)
        ]
        self.graph = self._captured_options = None
        streams = sessions if device.type == "cuda" else []
        self.streams = [torch.cuda.Stream(device) for _ in streams]

    @property
    def fused(self):
        """Whether all members compute with fused layers."""
        return all(member.norms.fused is not None for member in self.members)

    def run(self, first, n_steps):
        """Make ``n_steps`` updates of every member from a place of the buffers on."""
        self.position.fill_(first)
        for member in self.members:
            member.module.train()
        if self.graph is None and self.streams:
            self._capture(first)
        for member in self.members:
            member.counters.n_passes += n_steps * member.clean_passes
        for _ in range(n_steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
        self.n_steps += n_steps

    def losses(self):
        """Mean loss of each member since the last call."""
        losses = (self.total / self.n_steps).tolist()
        self.total.zero_()
        self.n_steps = 0
        return losses

    @contextmanager
    def at_rest(self):
        """Modules and optimizers as anybody may use them, for callbacks and copies."""
        self.rest()
        with torch.compiler.set_stance("force_eager"):
            yield
        self.wake()

    def rest(self):
        """Give modules and optimizers their own back; the graph stays as it is."""
        for member in self.members:
            member.rest()

    def wake(self):
        """Go on with what the graph was captured on, unless its constants changed."""
        for member in self.members:
            member.wake()
        if self.graph is not None and self._options() != self._captured_options:
            self.graph = None

    def close(self):
        """Leave the optimizers as they were found, and free the graph."""
        for member in self.members:
            member.rest()
            member.optimizer.zero_grad()
        self.graph = None

    def compile(self):
        """Run the modules through torch.compile from the next step on."""
        for member in self.members:
            member.module.compile(dynamic=False)
        self.graph = None

    def _options(self):
        return [member.options() for member in self.members]

    def _capture(self, first):
        before = [member.snapshot() for member in self.members]
        with _choosing_algorithms():
            graph, _ = capture_graph(
                self._step, self.position.device, lambda: self.position.fill_(first)
            )
        for member, values in zip(self.members, before):
            member.put_back(values)
        self.position.fill_(first)
        self.total.zero_()
        self.graph, self._captured_options = graph, self._options()

    def _step(self):
        """One update of every member, each on a stream of its own."""
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
    """What one member does in a step, on tensors that never move."""

    def __init__(self, session, i, shared, segment):
        self.net, self.i, self.shared, self.segment = session.net, i, shared, segment
        self.module, self.optimizer = session.net.module_, session.net.optimizer_
        self.smoothing = session.net.criterion_.label_smoothing
        self.clean_passes = (segment.sizes.sam > 0) + (segment.sizes.normal > 0)
        self.device = shared.position.device
        self.counters = BatchCounters(self.module)
        self.statistics = [
            buffer
            for layer in self.module.modules()
            if isinstance(layer, torch.nn.modules.batchnorm._NormBase)
            for buffer in layer.buffers(recurse=False)
        ]
        self.kept_statistics = [buffer.clone() for buffer in self.statistics]
        weights = dict(self.module.named_parameters())
        self.masked = [weights[name] for name in session.masks]
        self.masks = {id(weights[k]): mask for k, mask in session.masks.items()}
        self.cast = CastWeights(self.module, segment.precision)
        self.norms = FusedNorms(self.module, wanted=segment.compile is None)
        # A split pass goes round the member's own call.
        fused = None if is_hooked(self.module) else self.norms.fused
        self.split = SplitPass(fused, segment.sizes.sam)
        self._plain_groups = [dict(group) for group in self.optimizer.param_groups]
        self._captured_groups = None  # while at rest
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

        def loss_of(part, module=self.module):
            self.cast.push()
            with autocast(self.segment.precision, self.device, cache=False):
                logits = module(x[part])
            losses = cross_entropy(
                logits.float(),
                y[part],
                reduction="none",
                label_smoothing=self.smoothing,
            )
            return (losses * weight[part]).sum()

        def backward(loss):
            loss.backward()
            self.cast.pull()
            self._mask([(w, w.grad) for w in self.masked if w.grad is not None])

        def both_parts():
            loss = loss_of(slice(None), self._both_parts_of)
            backward(loss)
            normal = self.split.take_gradients(self.cast.owner_of)
            self._mask(normal)
            return loss, normal

        loss = balanced_step(
            self.optimizer,
            loss_of,
            self.segment.sizes.sam,
            len(y),
            sam_share=weight[: self.segment.sizes.sam].sum(),
            both_parts=None if self.split.module is None else both_parts,
            module=False,
            backward=backward,
            perturbed_pass=self._statistics_put_back,
            descend=self._descend,
        )
        self.shared.total[self.i] += loss

    def _batch(self):
        """Samples, labels and weights at the shared position; sets the rate there."""
        feed, position = self.shared.feed, self.shared.position
        x, y, weight, rate = (
            buffer[self.i].index_select(0, position)[0]
            for buffer in (feed.x, feed.y, feed.weight, feed.lr)
        )
        for group in self.optimizer.param_groups:
            group["lr"].copy_(rate)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y, weight

    def _descend(self):
        """Step of the optimizer; what callbacks made of pruned weights is undone."""
        self.optimizer.descend()
        with torch.no_grad():
            self._mask([(weight, weight) for weight in self.masked])

    def _mask(self, gradients):
        """Make zero what belongs to pruned weights, given pairs of weight and it."""
        pairs = [(grad, self.masks.get(id(weight))) for weight, grad in gradients]
        pairs = [(grad, mask) for grad, mask in pairs if mask is not None]
        if pairs:
            torch._foreach_mul_(*map(list, zip(*pairs)))

    def _both_parts_of(self, x):
        split = self.split.module
        assert split is not None  # only called with a split
        return split(self.module.own_input(x))

    @contextmanager
    def _statistics_put_back(self):
        """Run the perturbed pass with the same code and undo its BatchNorm updates.

        Freezing them instead would make a second version of every layer for the
        compiler.
        """
        if self.statistics:
            torch._foreach_copy_(self.kept_statistics, self.statistics)
        yield
        if self.statistics:
            torch._foreach_copy_(self.statistics, self.kept_statistics)

    def snapshot(self):
        """Copy of everything that a step changes."""
        # The optimizer's weights: layers may be computing with casts of them.
        weights = [w for group in self.optimizer.param_groups for w in group["params"]]
        weights += self.module.buffers()
        return (
            [(tensor, tensor.detach().clone()) for tensor in weights],
            {id(t): t.clone() for _, t in _state_tensors(self.optimizer)},
        )

    @torch.no_grad()
    def put_back(self, snapshot):
        """Undo steps in place; what the optimizer made meanwhile starts afresh."""
        weights, state = snapshot
        for tensor, value in weights:
            tensor.copy_(value)
        for name, tensor in _state_tensors(self.optimizer):
            if id(tensor) in state:
                tensor.copy_(state[id(tensor)])
            else:
                tensor.fill_(INITIAL_STATE.get(name, 0.0))

    def options(self):
        """Settings of the optimizer that are constants of a graph."""
        apart = {"params", *GRAPH_SETTINGS}
        groups = self.optimizer.param_groups
        return [{key: group[key] for key in group.keys() - apart} for group in groups]

    def rest(self):
        """Give module and groups their own back; the rate is the last one used."""
        if self._captured_groups is not None:
            return
        self.norms.close()
        self.cast.close()
        self.counters.close()
        self._captured_groups = []
        for group, plain in zip(self.optimizer.param_groups, self._plain_groups):
            own = {key: group[key] for key in GRAPH_SETTINGS if key in plain}
            self._captured_groups.append(own)
            group.update({key: plain[key] for key in own}, lr=float(group["lr"]))

    def wake(self):
        """Go on with the very tensors that a graph was captured on."""
        if self._captured_groups is None:
            return
        self.norms.open()
        self.cast.open()
        self.counters.open()
        for group, own in zip(self.optimizer.param_groups, self._captured_groups):
            group.update(own)
        self._captured_groups = None


@contextmanager
def _choosing_algorithms():
    """Let cuDNN time its algorithms for the shapes it meets."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _count_on_device(optimizer):
    """Let optimizers count their steps where the weights are, as a capture needs.

    A state that was loaded has the counts on the CPU.
    """
    for weight, entries in optimizer.state.items():
        if isinstance(entries.get("step"), torch.Tensor):
            entries["step"] = entries["step"].to(weight.device)


def _state_tensors(optimizer):
    own = getattr(optimizer, "_own_state", {})
    return [
        (name, value)
        for entries in [*optimizer.state.values(), *own.values()]
        for name, value in entries.items()
        if isinstance(value, torch.Tensor)
    ]
