"""A member in training: its net, its callbacks and its history.

Every engine has one session per member, so that all engines call callbacks and write
records in the same way.
"""

import math
import time
import warnings

import torch
from skorch.callbacks import Callback, Checkpoint, LRScheduler, TrainEndCheckpoint

from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.data.training_data import DeviceData, rows_at_once
from sklearn_sharpbalance.exceptions import DivergenceError, SharpBalanceWarning
from sklearn_sharpbalance.members.state import capture, restore, to_cpu
from sklearn_sharpbalance.members.weights import gradient_masks, updated_average
from sklearn_sharpbalance.runtime.process import SigintRecorder
from sklearn_sharpbalance.runtime.rng import (
    AFTER_TRAINING,
    BEFORE_TRAINING,
    epoch_seed,
    random_stream,
    seed_generators,
)
from sklearn_sharpbalance.runtime.torch_internals import foreach_mul_, set_training

__all__ = [
    "NO_REPORT",
    "MemberSession",
    "Report",
    "callbacks_for",
    "check_finite",
    "own_files",
    "rho_name",
]

VALID_BATCH = 1024
# Added to the number of an epoch, for the draws of callbacks.
EPOCH_BEGIN, EPOCH_END = 2**33, 2**34


class Report:
    """Hears how far members are that train in this process; this one ignores it."""

    def reached(self, members, epochs):
        """Hear that members have trained a number of epochs, such as 2.5.

        It is called after every batch, or after every epoch by engines that do not wait
        for the end of a batch. ``members`` are positions in the ensemble.
        """

    def epoch(self, member, record):
        """Hear the record of an epoch of a member; return whether it should stop."""
        return False


NO_REPORT = Report()


class MemberSession:
    """One member during one phase, in a net of its own.

    ``net`` has the settings shared by all members and is not changed. ``stopped`` tells
    whether ``report`` or a callback has stopped the member.
    """

    def __init__(self, net, state, data, segment, report=NO_REPORT):
        self.net, self.state, self.segment = restore(net, state), state, segment
        self.data, self.report = data, report
        self.stopped = state.stopped
        # It has no effect if it is not enabled.
        self.scaler = torch.amp.GradScaler(
            torch.device(self.net.device).type, enabled=segment.precision == "fp16"
        )
        if "scaler" in state.extra:
            self.scaler.load_state_dict(state.extra["scaler"])
        if segment.compile:
            self.net.module_.compile(dynamic=False)
        rho = segment.rho[state.index]
        # In later segments of a phase, keep the radius that a callback may have set.
        if state.optimizer is None or state.extra.get("rho") != rho:
            self._set_rho(rho)
        self.average = state.extra.get("average")
        self.position = state.extra.get("position")  # in a stream
        self.masks = {}
        if segment.pruned:
            self.masks = gradient_masks(self.net.module_.named_parameters())
        self.valid = data.valid and DeviceData(data.valid, self.net.device)
        self._datasets = {
            "dataset_train": self.net.get_dataset(data.X, data.y),
            "dataset_valid": data.valid
            and self.net.get_dataset(data.valid.X, data.valid.y),
        }
        seed = epoch_seed(state.seed, BEFORE_TRAINING)
        with random_stream(self.net.device, seed=seed):
            self._resume_callbacks()
        self.has_batch_callbacks = bool(callbacks_for(self.net, "on_batch_"))
        self.has_gradient_callbacks = bool(callbacks_for(self.net, "on_grad_"))
        self.sets_own_rate = any(
            isinstance(callback, LRScheduler) for _, callback in self.net.callbacks_
        )
        self._started = 0.0
        self._has_warned = False

    def weights(self):
        """Return the state of the module."""
        return self.net.module_.state_dict()

    def options(self):
        """Return the parameter group of the optimizer."""
        return self.net.optimizer_.param_groups[0]

    def optimizer_state(self):
        """Return the state of the optimizer."""
        return self.net.optimizer_.state_dict()

    def take_weights(self, weights):
        """Set weights of the module."""
        self.net.module_.load_state_dict(weights, strict=False)

    def take_optimizer(self, state):
        """Set the state of the optimizer."""
        self.net.optimizer_.load_state_dict(state)

    def begin_segment(self, segment, report=NO_REPORT):
        """Continue with the segment after the last one; ``rho`` may differ."""
        rho = segment.rho[self.state.index]
        if rho != self.segment.rho[self.state.index]:
            self._set_rho(rho)
        self.segment, self.report = segment, report

    def _set_rho(self, rho):
        """Set the radius of the perturbation."""
        for group in self.net.optimizer_.param_groups:
            group[rho_name(group)] = rho

    @property
    def reads_weights(self):
        """Whether the end of an epoch needs the weights in the net."""
        return bool(
            self.net.callbacks_ or self.valid is not None or self.segment.averaging
        )

    def unscale(self):
        """Divide the gradients of a scaled loss by the scale."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.net.optimizer_.base_optimizer)

    def descend(self):
        """Make a step of the base optimizer; skip it if fp16 gradients overflow."""
        if self.scaler.is_enabled():
            self.net.optimizer_.descend(scaler=self.scaler)
            self.scaler.update()
        else:
            self.net.optimizer_.descend()
        self._reset_pruned()  # some optimizers mix the gradients of weights

    @torch.no_grad()
    def _reset_pruned(self):
        """Set pruned weights to zero."""
        if self.masks:
            weights = dict(self.net.module_.named_parameters())
            pruned = [weights[name] for name in self.masks]
            foreach_mul_(pruned, list(self.masks.values()))

    def backward(self, loss):
        """Compute gradients, scaled for fp16; those of pruned weights are zero."""
        self.scaler.scale(loss).backward()
        if self.masks:
            weights = dict(self.net.module_.named_parameters())
            # A weight that the loss does not depend on has no gradient.
            names = [name for name in self.masks if weights[name].grad is not None]
            grads = [weights[name].grad for name in names]
            foreach_mul_(grads, [self.masks[name] for name in names])

    def begin_epoch(self, epoch):
        """Start the timer of the epoch and call the callbacks."""
        self._started = time.perf_counter()
        self._notify("on_epoch_begin", EPOCH_BEGIN + epoch)

    def end_epoch(self, epoch, loss, lr):
        """Write the record, call the callbacks, and report the epoch.

        ``loss`` is the mean over the batches, ``lr`` the rate of the last batch.
        """
        check_finite(loss, self.state.index, epoch, lr)
        record = {"train_loss": loss, "lr": lr, "phase": self.segment.name}
        if self.valid is not None:
            record |= self.validate()
        record["dur"] = time.perf_counter() - self._started
        for name, value in record.items():
            self.net.history.record(name, value)
        self._complete_record()
        averaging = self.segment.averaging
        if averaging is not None and averaging.covers(epoch, self.segment.n_epochs):
            self._reset_pruned()  # batch callbacks may have changed them
            weights = self.net.module_.state_dict()
            self.average = updated_average(self.average, weights, averaging)
        self._notify_epoch_end(epoch)
        self._reset_pruned()  # in the next segment zeros are the mask
        self.stopped |= self.report.epoch(self.state.index, self.net.history[-1])

    def _complete_record(self):
        """Add the entries that skorch's own callbacks read."""
        history = self.net.history
        if not self.net.callbacks_:
            return
        for name, best in [
            ("train_loss", min),
            ("valid_loss", min),
            ("valid_acc", max),
        ]:
            if name in history[-1]:
                is_best = history[-1, name] == best(history[:, name])
                history.record(f"{name}_best", is_best)
        if not history[-1]["batches"]:  # Checkpoint reads the last one for file names
            history.new_batch()

    def _notify_epoch_end(self, epoch):
        """Call the callbacks; stop the member if one of them raises an interrupt.

        skorch's EarlyStopping stops a fit by raising KeyboardInterrupt. That of the
        user's Ctrl-C is raised again.
        """
        with SigintRecorder() as ctrl_c:
            try:
                self._notify("on_epoch_end", EPOCH_END + epoch)
            except KeyboardInterrupt:
                if ctrl_c.received:
                    raise
                self.stopped = True

    def _notify(self, event, number):
        """Call the callbacks; warn if one sets the learning rate without effect.

        What they draw depends on the member's seed and a number only, not on the
        members that train at the same time.
        """
        if self.net.callbacks_:
            seed_generators(epoch_seed(self.state.seed, number), self.net.device)
        groups = self.net.optimizer_.param_groups
        before = [group["lr"] for group in groups]
        self.net.notify(event, **self._datasets)
        rates = [group["lr"] for group in groups]
        if rates != before and not (self.sets_own_rate or self._has_warned):
            self._has_warned = True
            warnings.warn(
                f"A callback has set lr to {rates[0]:g}, which has no effect: "
                "lr_schedule sets it before every step. Pass a function of progress as "
                "lr_schedule, or skorch's LRScheduler as a callback.",
                SharpBalanceWarning,
                stacklevel=4,
            )

    def validate(self):
        """Return weighted loss and accuracy on the validation samples."""
        net, source, weight = self.net, self.valid, self.valid.weight
        batch = rows_at_once(self.data.valid, VALID_BATCH)
        if weight is None or not weight.any():  # equal weights
            weight = torch.ones(len(source.y), device=source.device)
        set_training(net, False)
        loss, right = 0.0, 0.0
        with torch.no_grad():
            for x, rows in source.in_order(batch):
                y, output, own = source.y[rows], net.infer(x), weight[rows]
                losses = sample_losses(net, output, y)
                loss += (losses.where(own > 0, 0) * own).sum().item()
                # argmax returns a class also for a row of NaN.
                hits = (output.argmax(1) == y) & output.amax(1).isfinite()
                right += hits.mul(own).sum().item()
                if self.has_batch_callbacks:
                    self._notify_valid_batch(x, y, output, losses.mean())
        total = weight.sum(dtype=torch.float64).item()
        return {"valid_loss": loss / total, "valid_acc": right / total}

    def _notify_valid_batch(self, x, y, output, loss):
        """Record a validation batch and call the callbacks."""
        self.net.notify("on_batch_begin", batch=(x, y), training=False)
        self.net.history.record_batch("valid_loss", loss.item())
        self.net.history.record_batch("valid_batch_size", len(y))
        step = {"loss": loss, "y_pred": output}
        self.net.notify("on_batch_end", batch=(x, y), training=False, **step)

    def finish(self, over=None):
        """Return the member's state after the segment.

        ``over`` is whether its training is complete; None is True if it has stopped,
        or after the last segment.
        """
        if over is None:
            over = self.stopped or self.segment.last
        if over:
            seed = epoch_seed(self.state.seed, AFTER_TRAINING)
            with random_stream(self.net.device, seed=seed):
                self.net.notify("on_train_end", X=self.data.X, y=self.data.y)
            self._reset_pruned()
        kept = {
            name: _scheduler_state(callback)
            if isinstance(callback, LRScheduler)
            else callback
            for name, callback in self.net.callbacks_
        }
        rho = self.segment.rho[self.state.index]
        extra = {"callbacks": kept, "rho": rho} if kept else {}
        if self.scaler.is_enabled():
            extra["scaler"] = self.scaler.state_dict()
        if self.average is not None:
            extra["average"] = to_cpu(self.average)
        if self.position is not None:
            extra["position"] = self.position
        return capture(self.net, self.state, extra=extra, stopped=self.stopped)

    def _resume_callbacks(self):
        """Start callbacks in the first phase; restore their state in later ones."""
        kept = self.state.extra.get("callbacks", {})
        resumed = []
        for name, callback in self.net.callbacks_:
            if isinstance(callback, LRScheduler):
                self._resume_scheduler(callback, kept.get(name))
            elif name in kept:
                callback = kept[name]
            else:
                own_files(callback, self.state.index)
                callback.on_train_begin(self.net, X=self.data.X, y=self.data.y)
            resumed.append((name, callback))
        self.net.callbacks_ = resumed

    def _resume_scheduler(self, callback, kept):
        """Start a scheduler on this net's optimizer and restore its state."""
        groups = self.net.optimizer_.param_groups
        before = [{k: v for k, v in g.items() if k != "params"} for g in groups]
        callback.on_train_begin(self.net, X=self.data.X, y=self.data.y)
        if kept is not None:
            known = callback.lr_scheduler_.state_dict().keys()
            own = {name: kept[name] for name in kept if name in known}
            callback.lr_scheduler_.load_state_dict(own)
        if self.state.optimizer is not None:
            # A new scheduler makes a first step. Undo it: this one had made it before.
            for group, values in zip(groups, before):
                group.update(values)
        elif kept is not None:  # the optimizer was reset between phases
            for group, lr in zip(groups, kept.get("_last_lr", ())):
                group["lr"] = lr


def own_files(callback, member):
    """Add the member to the names of checkpoint files."""
    for writer in (callback, getattr(callback, "checkpoint", None)):
        if isinstance(writer, Checkpoint | TrainEndCheckpoint):
            writer.fn_prefix = f"member_{member}_{writer.fn_prefix}"
            writer.initialize()  # it may have copied the old name


def callbacks_for(net, prefix):
    """Callbacks of a net that override a hook whose name starts with ``prefix``."""
    hooks = [name for name in dir(Callback) if name.startswith(prefix)]

    def overrides(callback, hook):
        return getattr(type(callback), hook) is not getattr(Callback, hook)

    return [c for _, c in net.callbacks_ if any(overrides(c, hook) for hook in hooks)]


def rho_name(group):
    """Return the option of the radius; "sam_rho" if the base optimizer has a rho."""
    return "sam_rho" if "sam_rho" in group else "rho"


def check_finite(loss, member, epoch, lr):
    """Raise if a member's loss is not finite."""
    if not math.isfinite(loss):
        raise DivergenceError(
            f"The training loss of member {member} became {loss} in epoch {epoch + 1} "
            f"at learning rate {lr:g}. Lower lr or rho, check X for extreme values, or "
            "leave standardize=True."
        )


def _scheduler_state(callback):
    state = callback.lr_scheduler_.state_dict()
    return {key: value for key, value in state.items() if not callable(value)}
