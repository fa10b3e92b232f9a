"""The engine that trains each member as a skorch net and supports every feature."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.data.augment import EpochAugment, ImageTransform
from sklearn_sharpbalance.data.batches import BatchLayout
from sklearn_sharpbalance.data.training_data import ArrayRows, DeviceData, take_rows
from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.engine.support import meta_module, shared_refusal
from sklearn_sharpbalance.members.session import NO_REPORT, MemberSession
from sklearn_sharpbalance.members.step import set_learning_rate, training_step
from sklearn_sharpbalance.runtime.devices import AUTOCAST_DTYPES, autocast, tf32
from sklearn_sharpbalance.runtime.process import flushed_denormals, torch_threads
from sklearn_sharpbalance.runtime.rng import (
    epoch_rng,
    epoch_seed,
    lending_process_state,
    random_stream,
    seed_generators,
)
from sklearn_sharpbalance.runtime.torch_internals import DROPOUT, set_training

__all__ = ["SkorchEngine", "loader_params", "train_member"]

NETWORKS = "sklearn_sharpbalance.networks."
_TURN = threading.RLock()  # one member at a time draws from the generators, or reports


class SkorchEngine(Engine):
    """Trains each member as a skorch net.

    Parameters
    ----------
    jobs : MemberJobs or None, default=None
        Runs the training of members; None uses joblib's settings: processes of this
        machine (loky), or a cluster inside ``joblib.parallel_config(backend="dask")``.
        Members of a worker that dies are trained again by another worker.
    """

    name = "skorch"

    def __init__(self, jobs=None):
        super().__init__(jobs or MemberJobs())

    @classmethod
    def refusal(cls, net, data, training):
        """Return None: this engine trains every ensemble."""
        return None

    def open(self, net, members, data):
        """Return a run that restores each member in each segment."""
        return SkorchRun(self.jobs, net, members, data)


class SkorchRun(EngineRun):
    """Members that train in threads, one after the other, or in parallel jobs."""

    def __init__(self, jobs, net, members, data):
        super().__init__(net, members, data)
        self.jobs = jobs

    def train(self, segment, masks, report=NO_REPORT):
        """Train the members in threads, one after the other, or in parallel jobs."""
        train: Callable = partial(self.jobs.run, train_member)
        if self.jobs.parallel:
            report = NO_REPORT  # other processes cannot report to this one
        elif allows_threads(self.net, self.members, self.data, segment):
            train = train_in_threads
        calls = [
            {"state": member, "segment": segment, "mask": mask, "report": report}
            for member, mask in zip(self.members, masks)
        ]
        self.members = train(self.net, self.data, calls)
        return self.members


def train_member(net, state, data, segment, mask, report=NO_REPORT):
    """Train a member from ``segment.start`` to ``segment.stop``; return its new state.

    ``mask`` is True for the samples that get SAM.
    """
    if state.stopped:
        return state
    session = MemberSession(net, state, data, segment, report)
    with random_stream(session.net.device), tf32(segment.precision):
        for epochs in train_batches(session, mask):
            report.reached([state.index], epochs)
    return session.finish()


def allows_threads(net, members, data, segment) -> bool:
    """Whether members may train in threads: no step of them draws random numbers."""
    module = meta_module(net)
    return (
        min(torch.get_num_threads(), len(members)) > 1
        and torch.device(net.device).type == "cpu"
        and module is not None
        and _is_known(module)
        and isinstance(segment.transform, ImageTransform | None)
        and isinstance(data.X, np.ndarray | ArrayRows)
        and not (segment.compile or net.callbacks or shared_refusal(net))
    )


def _is_known(module):
    """Whether a network of this package has only its own layers and torch's."""
    kinds = [type(layer) for layer in module.modules()]
    return kinds[0].__module__.startswith(NETWORKS) and all(
        kind.__module__.startswith((NETWORKS, "torch.nn.modules."))
        and not issubclass(kind, DROPOUT)
        for kind in kinds
    )


def train_in_threads(net, data, calls):
    """Train members in threads, each of which computes the next batch of some member.

    A second core speeds up small convolutions less than a second member does. ``calls``
    are arguments of :func:`train_member`.
    """
    n_threads = min(torch.get_num_threads(), len(calls))
    own_threads = torch.get_num_threads() // n_threads
    segment, report = calls[0]["segment"], calls[0]["report"]
    members = [call["state"] for call in calls]
    sessions = {
        i: MemberSession(net, member, data, segment, report)
        for i, member in enumerate(members)
        if not member.stopped
    }
    running: dict[Future, tuple] = {}  # member and batches of each task
    pool = ThreadPoolExecutor(
        n_threads, initializer=torch.set_num_threads, initargs=(own_threads,)
    )

    def next_batch(batches):
        with lending_process_state():
            return next(batches, None)

    def go_on(i, batches):
        running[pool.submit(next_batch, batches)] = i, batches

    stream = random_stream(net.device)
    with stream, tf32(segment.precision), torch_threads(own_threads), pool:
        for i, session in sessions.items():
            go_on(i, train_batches(session, calls[i]["mask"]))
        while running:
            for batch in wait(running, return_when=FIRST_COMPLETED).done:
                i, batches = running.pop(batch)
                epochs = batch.result()
                if epochs is not None:
                    report.reached([members[i].index], epochs)
                    go_on(i, batches)
    for i, session in sessions.items():
        members[i] = session.finish()
    return members


def train_batches(session, mask):
    """Train a member through its segment; yield its epochs after each batch."""
    segment = session.segment
    source = DeviceData(session.data, session.net.device, loader_params(session.net))
    layout = BatchLayout(mask, segment.sizes)
    with _fused_steps(session.net):
        for epoch in range(segment.start, segment.stop):
            yield from train_epoch(session, source, layout, epoch)
            if session.stopped:
                break


@contextmanager
def _fused_steps(net):
    """Update all weights in one operation, which is faster on a CPU."""
    is_wanted = torch.device(net.device).type == "cpu" and _is_known(net.module_.module)
    groups = [
        group
        for group in net.optimizer_.param_groups
        if is_wanted and group.get("fused", 0) is None and group["foreach"] is None
    ]
    for group in groups:
        group["fused"] = True
    try:
        yield
    finally:
        for group in groups:
            group["fused"] = None


def train_epoch(session, source, layout, epoch):
    """Train a member for one epoch; yield its epochs after each batch."""
    net, seed = session.net, session.state.seed
    indices = layout.epoch(epoch_rng(seed, epoch))
    share = torch.as_tensor(layout.share, device=net.device)
    session.begin_epoch(epoch)
    if source.is_stream:
        source.X.begin(epoch, session.position)
    with _TURN:
        seed_generators(epoch_seed(seed, epoch), net.device)
        augment = EpochAugment(session.segment.transform, share.shape, net.device)
    total = torch.zeros((), device=net.device)
    for t, (x, rows) in enumerate(source.iterate(indices)):
        if not session.sets_own_rate:
            factor = session.segment.lr_factor(epoch, t)
            set_learning_rate(net.optimizer_, factor)
        used, is_sam = slice(layout.widths[t]), bool(layout.is_sam[t])
        x = augment.batch(t, take_rows(x, used))
        total += train_batch(session, source, x, rows[used], share[t, used], is_sam)
        yield epoch + (t + 1) / len(indices)
    if source.is_stream:
        session.position = source.X.position
    lr = float(net.optimizer_.param_groups[0]["lr"])
    with _TURN:
        session.end_epoch(epoch, total.item() / len(indices), lr)


def train_batch(session, source, x, rows, share, is_sam):
    """Make one update of one member and return the loss of the batch, a tensor."""
    net, segment = session.net, session.segment
    y = source.y[rows]
    weight = share if source.weight is None else share * source.weight[rows]
    if session.has_batch_callbacks:
        places = _real_places(share)
        shown = take_rows(x, places), y[places]
        net.notify("on_batch_begin", batch=shown, training=True)
        x, y = _put_back(x, places, shown[0]), _put_back(y, places, shown[1])
    set_training(net, True)

    outputs = []  # of each pass

    def loss_of_batch():
        with autocast(segment.precision, net.device):
            output = net.infer(x)
            losses = sample_losses(net, output, y)
        outputs.append(output.detach())
        return (losses.float() * weight).sum()

    def notify_gradients():
        session.unscale()
        named = list(net.module_.named_parameters())
        net.notify("on_grad_computed", named_parameters=named)

    with flushed_denormals():
        loss = training_step(
            net.optimizer_,
            loss_of_batch,
            is_sam,
            grad_scale=weight.sum() * session.scaler.get_scale(),
            module=net.module_,
            backward=session.backward,
            descend=session.descend,
            before_update=notify_gradients if session.has_gradient_callbacks else None,
        )
    if session.has_batch_callbacks:
        y_pred = outputs[0][places]
        if y_pred.dtype in AUTOCAST_DTYPES.values():
            y_pred = y_pred.float()  # numpy and skorch's scoring have no bfloat16
        net.history.record_batch("train_loss", loss.item())
        net.history.record_batch("train_batch_size", len(y_pred))
        step = {"loss": loss, "y_pred": y_pred}
        net.notify("on_batch_end", batch=shown, training=True, **step)
    return loss


def _real_places(share):
    """Return the places of a batch with a positive share; the others are padding."""
    real = share > 0
    return slice(None) if real.all() else real


def _put_back(x, places, shown):
    """Return a batch with the in-place changes of callbacks to ``shown``."""
    if isinstance(places, slice):  # shown is the batch itself
        return x
    if isinstance(x, Mapping):
        return {key: _put_back(x[key], places, shown[key]) for key in x}
    # A new tensor: that of a transform may be read-only.
    return x.index_put((places,), shown)


def loader_params(net):
    """Return the net's DataLoader settings for fetching items."""
    params = net.get_params_for("iterator_train")
    return {k: v for k, v in params.items() if k not in ("shuffle", "batch_size")}
