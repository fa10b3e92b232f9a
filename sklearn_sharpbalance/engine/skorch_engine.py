"""The engine that trains each member as a skorch net and supports every feature."""

from collections.abc import Mapping

import torch

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.batches import BatchLayout
from sklearn_sharpbalance.data.training_data import DeviceData, take_rows
from sklearn_sharpbalance.engine.base import Engine, EngineRun
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.members.session import NO_REPORT, MemberSession
from sklearn_sharpbalance.members.step import set_learning_rate, training_step
from sklearn_sharpbalance.runtime.devices import AUTOCAST_DTYPES, autocast, tf32
from sklearn_sharpbalance.runtime.process import flushed_denormals
from sklearn_sharpbalance.runtime.rng import (
    epoch_rng,
    epoch_seed,
    random_stream,
    seed_generators,
)
from sklearn_sharpbalance.runtime.torch_internals import set_training

__all__ = ["SkorchEngine", "loader_params", "train_member"]


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
    """Members that train one after the other, or in parallel jobs."""

    def __init__(self, jobs, net, members, data):
        super().__init__(net, members, data)
        self.jobs = jobs

    def train(self, segment, masks, report=NO_REPORT):
        """Train the members one after the other, or in parallel jobs."""
        if self.jobs.parallel:
            report = NO_REPORT  # other processes cannot report to this one
        calls = [
            {"state": member, "segment": segment, "mask": mask, "report": report}
            for member, mask in zip(self.members, masks)
        ]
        self.members = self.jobs.run(train_member, self.net, self.data, calls)
        return self.members


def train_member(net, state, data, segment, mask, report=NO_REPORT):
    """Train a member from ``segment.start`` to ``segment.stop``.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    state : MemberState
    data : TrainingData
    segment : Segment
    mask : ndarray of shape (N,), dtype bool
        True for the samples that get SAM.
    report : Report
        As in :meth:`EngineRun.train`.

    Returns
    -------
    state : MemberState
    """
    if state.stopped:
        return state
    session = MemberSession(net, state, data, segment, report)
    source = DeviceData(data, session.net.device, loader_params(session.net))
    layout = BatchLayout(mask, segment.sizes)
    with random_stream(session.net.device), tf32(segment.precision):
        for epoch in range(segment.start, segment.stop):
            train_epoch(session, source, layout, epoch)
            if session.stopped:
                break
    return session.finish()


def train_epoch(session, source, layout, epoch):
    """Train a member for one epoch, batch by batch."""
    net, seed = session.net, session.state.seed
    indices = layout.epoch(epoch_rng(seed, epoch))
    session.begin_epoch(epoch)
    if source.is_stream:
        source.X.begin(epoch, session.position)
    seed_generators(epoch_seed(seed, epoch), net.device)
    share = torch.as_tensor(layout.share, device=net.device)
    augment = EpochAugment(session.segment.transform, share.shape, net.device)
    total = torch.zeros((), device=net.device)
    member, n_batches = [session.state.index], len(indices)
    for t, (x, rows) in enumerate(source.iterate(indices)):
        if not session.sets_own_rate:
            factor = session.segment.lr_factor(epoch, t)
            set_learning_rate(net.optimizer_, factor)
        x, is_sam = augment.batch(t, x), bool(layout.is_sam[t])
        total += train_batch(session, source, x, rows, share[t], is_sam)
        session.report.reached(member, epoch + (t + 1) / n_batches)
    if source.is_stream:
        session.position = source.X.position
    lr = float(net.optimizer_.param_groups[0]["lr"])
    session.end_epoch(epoch, total.item() / n_batches, lr)


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
