"""Nets that predict: their logits, their mean weights (soups), BatchNorm statistics."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from sklearn_sharpbalance.autodiff import in_chunks
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.labels import is_right, weighted_mean
from sklearn_sharpbalance.data.training_data import (
    DeviceData,
    TrainingData,
    rows_at_once,
)
from sklearn_sharpbalance.engine.stacked.network import (
    stacked_forward,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.members.net import as_logits
from sklearn_sharpbalance.members.state import (
    MemberState,
    loose_buffers,
    restore,
    to_cpu,
)
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.torch_internals import BATCH_NORM

__all__ = [
    "conformity_scores",
    "final_net",
    "greedy_soup",
    "has_batch_statistics",
    "logits_on",
    "mean_weights",
    "member_logits",
    "recompute_batch_statistics",
    "uniform_soup",
    "validation_accuracy",
    "warn_of_different_starts",
]

PREDICT_BATCH = 2048
ROW_BLOCK = 16
STATISTICS_BATCH = 512
RELATED = 0.3  # cosine between members of one start; from different ones it is near 0


def member_logits(nets, X, item_shape=None):
    """Return the logits of each net, (M, N, C) float32.

    Each batch is copied to the device once for all members. A batch that does not fit
    into the memory of the device is halved. The nets are set to evaluation mode. X is
    an array, a dict of arrays, or a Dataset with items of ``item_shape``.
    """
    if len({str(net.device) for net in nets}) > 1:
        return np.concatenate([member_logits([net], X, item_shape) for net in nets])
    data = TrainingData.unlabeled(X, item_shape)
    source = DeviceData(data, nets[0].device)
    batch = rows_at_once(data, PREDICT_BATCH, ROW_BLOCK)
    block = min(batch, ROW_BLOCK)  # 1 if samples are so large that they pass singly

    def predict(part):
        rows = np.arange(len(data))[part]
        # Matrix products of another shape may round differently. With full blocks of
        # rows, a prediction does not depend on the other samples of the batch.
        padded = np.resize(rows, -(-len(rows) // block) * block)
        ((x, _),) = source.iterate(padded[None])
        return forward(x)[:, : len(rows)].transpose(0, 1).cpu()  # (B, M, C)

    for net in nets:
        if any(module.training for module in net.module_.modules()):
            net.module_.eval()  # not restored: another thread may be predicting
    with torch.inference_mode():
        forward = _one_by_one(nets) if source.is_dataset else _forward(nets)
        logits = in_chunks(predict, len(data), batch, setting="batch")
        _warn_if_not_finite(logits)
    return np.ascontiguousarray(logits.transpose(0, 1).numpy())


def logits_on(nets, data: TrainingData):
    """Return the logits of each net on training or validation data, (M, N, C)."""
    return member_logits(nets, data.X, data.item_shape)


def conformity_scores(predictors, aggregation, data):
    """Return one minus the predicted probability of each validation sample's class.

    The aggregation is fitted. Samples of weight zero are left out. Return None without
    validation samples.
    """
    valid = data.valid
    if valid is None:
        return None
    proba = aggregation(logits_on(predictors, valid).astype(np.float64))
    of_class = proba[np.arange(len(proba)), valid.y] / proba.sum(axis=1)
    return 1 - (of_class if valid.weight is None else of_class[valid.weight > 0])


def _warn_if_not_finite(logits):
    """Warn if the largest logit of a sample is not finite in (N, M, C).

    Other logits may be minus infinity, by which a network excludes a class.
    """
    broken = ~logits.amax(-1).isfinite()  # (N, M)
    if not broken.any():
        return
    n_nets, rows = int(broken.any(0).sum()), broken.any(1).nonzero()
    warnings.warn(
        f"{n_nets} of {broken.shape[1]} networks give no finite logits for {len(rows)} "
        f"of {len(broken)} samples, the first is sample {int(rows[0])}: their "
        "predictions are meaningless. If the training loss was finite, BatchNorm "
        "statistics have not converged: train for more steps, or increase the momentum "
        "of these layers. Otherwise check X for extreme values.",
        SharpBalanceWarning,
        stacklevel=3,
    )


def _forward(nets):
    """Return a forward pass of all members, stacked if they are alike."""
    takes_logits = not isinstance(nets[0].criterion_, nn.NLLLoss)
    infers = all(type(net).infer is NeuralNetClassifier.infer for net in nets)
    network = stacked_forward([net.module_.module for net in nets])
    if network is None or not takes_logits or not infers:
        return _one_by_one(nets)

    def forward(x):
        x = nets[0].module_.standardize(x).flatten(1)
        return network(x.expand(len(nets), *x.shape))

    return forward


def _one_by_one(nets):
    return lambda x: torch.stack([as_logits(net, net.infer(x)) for net in nets])


def uniform_soup(nets, data):
    """Return a net with mean weights and BatchNorm statistics of the data."""
    soup = mean_weights(nets)
    recompute_batch_statistics(soup, data)
    return soup


def greedy_soup(nets, data):
    """Return the soup of those members that do not decrease its validation accuracy.

    Members are tried in the order of their own accuracy, so the soup is never worse
    than the best member on the validation samples of ``data``. Also return the members
    in the soup, the most accurate first.

    References
    ----------
    Wortsman et al., Model soups: averaging weights of multiple fine-tuned models
    improves accuracy without increasing inference time, ICML 2022.
    """
    accuracies = [validation_accuracy(net, data.valid) for net in nets]
    first, *others = np.argsort(-np.asarray(accuracies), kind="stable").tolist()
    soup, chosen, best = nets[first], [first], accuracies[first]
    for member in others:
        candidate = uniform_soup([nets[i] for i in [*chosen, member]], data)
        accuracy = validation_accuracy(candidate, data.valid)
        if accuracy >= best:
            soup, best = candidate, accuracy
            chosen.append(member)
    return soup, chosen


def validation_accuracy(net, valid: TrainingData) -> float:
    """Return the weighted accuracy of a net on the validation samples."""
    (logits,) = logits_on([net], valid)
    return weighted_mean(is_right(logits, valid.y), valid)


def final_net(net, member, data):
    """Return the net of a member with its last weights, or with their average.

    The data give the BatchNorm statistics of an average; ``net`` is not changed.
    """
    average = member.extra.get("average")
    if average is not None:
        member = replace(member, module=average["weights"])
    final = restore(net, member)
    kept = member.extra.get("callbacks", {})  # of schedulers only a state dict
    known = {name: c for name, c in kept.items() if isinstance(c, Callback)}
    final.callbacks_ = [(name, known.get(name, c)) for name, c in final.callbacks_]
    if average is not None:
        recompute_batch_statistics(final, data)
    return final


def mean_weights(nets: Sequence):
    """Return a net with the mean weights and floating point buffers of ``nets``."""
    states = [net.module_.state_dict() for net in nets]
    shapes = [{k: getattr(v, "shape", ()) for k, v in each.items()} for each in states]
    if any(each != shapes[0] for each in shapes):
        raise InvalidInputError(
            "A soup needs nets whose weights have the same shapes, got nets of "
            "different shapes. Combine their predictions instead."
        )
    extra = [loose_buffers(net) for net in nets]
    loose = _mean([each.get("buffers", {}) for each in extra])
    mean = MemberState(0, 0, to_cpu(_mean(states)), extra=extra[0] | {"buffers": loose})
    return restore(clone(nets[0]), mean)


def warn_of_different_starts(nets: Sequence) -> None:
    """Warn if the weights of two nets are no more alike than random ones.

    Vectors and numbers are not compared: those of norm layers are alike in all nets.
    """
    rows = [
        torch.cat([w.detach().flatten().double().cpu() for w in weights])
        for net in nets
        if (weights := [w for w in net.module_.parameters() if w.ndim > 1])
    ]
    if len(rows) < 2:
        return
    alike = min(float(nn.functional.cosine_similarity(rows[0], b, 0)) for b in rows[1:])
    if alike < RELATED:
        warnings.warn(
            f"The members start from different weights (the cosine between two of them "
            f"is {alike:.2f}), so the network with the mean of their weights predicts "
            "poorly. Use aggregation='mean_logit', or let all members start from the "
            "same weights, such as pretrained ones.",
            SharpBalanceWarning,
            stacklevel=2,
        )


def _mean(states):
    """Return the mean of each tensor; the first value if there is no mean."""

    def mean(key, value):
        if not torch.is_tensor(value):  # the result of get_extra_state
            return value
        values = [state.get(key, value) for state in states]
        same = all(each.shape == value.shape for each in values)
        numbers = value.is_floating_point() or value.is_complex()
        return torch.stack(values).mean(0) if same and numbers else value

    return {key: mean(key, value) for key, value in states[0].items()}


def recompute_batch_statistics(net, data, batch_size=STATISTICS_BATCH):
    """Set running BatchNorm statistics to those of the data, for the net's weights.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised net, changed in place.
    data : TrainingData
        Its ``transform`` is applied, as in training: statistics of samples without
        augmentation (without padding, say) would shift the input of the next layers.
    batch_size : int, default=512
        Layers normalise by the statistics of such a batch during the computation. The
        result is exact, for any batch size, in layers without a norm before them.
        Batches of large samples are smaller, to bound the memory.

    Notes
    -----
    Moments are pooled over all batches, including the variance between batches. The
    variance is the unbiased one, as in torch. Layers that stay in evaluation mode, such
    as frozen ones, keep their statistics. So do all layers if there is only one sample,
    which has no variance.
    """
    norms = _trained_norms(net)
    if not norms or len(data) == 1:
        return
    batch_size = rows_at_once(data, batch_size)
    # BatchNorm1d raises for a batch of one sample.
    n_batches = min(-(-len(data) // batch_size), len(data) // 2)
    batches = np.array_split(np.arange(len(data)), n_batches)
    source = DeviceData(data, net.device)
    moments = [_Moments() for _ in norms]
    with ExitStack() as undo, torch.no_grad():
        if data.transform is not None:
            # Draw the same augmentation for every net.
            undo.enter_context(random_stream(net.device, seed=0))
        for norm, moment in zip(norms, moments):
            undo.callback(norm.train, False)
            undo.callback(norm.register_forward_pre_hook(moment.add).remove)
            norm.train()
        for rows in batches:
            augment = EpochAugment(data.transform, (1, len(rows)), net.device)
            for x, _ in source.iterate(rows[None]):
                net.infer(augment.batch(0, x))
    for norm, moment in zip(norms, moments):
        if moment.count > 1:
            norm.running_mean.copy_(moment.mean)
            norm.running_var.copy_(moment.squares / (moment.count - 1))


def has_batch_statistics(net) -> bool:
    """Whether :func:`recompute_batch_statistics` would change a net."""
    return bool(_trained_norms(net))


def _trained_norms(net):
    net.module_.eval()
    return [layer for layer in net.module_.modules() if _updates_statistics(layer)]


def _updates_statistics(layer) -> bool:
    """Whether a layer in evaluation mode updates its running statistics in training."""
    if not isinstance(layer, BATCH_NORM) or not layer.track_running_stats:
        return False
    layer.train()
    updates = layer.training  # a frozen layer overrides train()
    layer.eval()
    return updates


class _Moments:
    """Mean and sum of squared deviations per channel, over all batches so far."""

    def __init__(self):
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, layer, inputs):
        """Add the input of a layer in float64, by the update of Chan et al."""
        x = inputs[0].detach().double().transpose(0, 1).flatten(1)  # (C, n)
        count, mean = x.shape[1], x.mean(1)
        squares = (x - mean[:, None]).square().sum(1)
        total, shift = self.count + count, mean - self.mean
        self.squares = (
            self.squares + squares + shift.square() * (self.count * count / total)
        )
        self.mean = self.mean + shift * (count / total)
        self.count = total
