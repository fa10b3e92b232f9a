"""Nets from nets: means of weights, BatchNorm statistics, choices by held-out data."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from skorch.callbacks import Callback
from torch.nn.modules.batchnorm import _BatchNorm

from sklearn_sharpbalance.aggregation.predicting import logits_on
from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.training_data import (
    DeviceData,
    TrainingData,
    rows_at_once,
)
from sklearn_sharpbalance.data.validation_split import is_right, weighted_mean
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.state import (
    MemberState,
    loose_buffers,
    restore,
    to_cpu,
    unfitted,
)
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = [
    "final_net",
    "greedy_soup",
    "has_batch_statistics",
    "held_out_accuracy",
    "mean_weights",
    "recompute_batch_statistics",
    "uniform_soup",
]

STATISTICS_BATCH = 512


def uniform_soup(nets, data):
    """One net with the mean of the weights of ``nets``.

    Parameters
    ----------
    nets : list of NeuralNetClassifier
    data : TrainingData
        For the BatchNorm statistics of the mean.

    Returns
    -------
    soup : NeuralNetClassifier
    """
    soup = mean_weights(nets)
    recompute_batch_statistics(soup, data)
    return soup


def greedy_soup(nets, data):
    """Soup of those members that each raise, or keep, its held-out accuracy.

    Parameters
    ----------
    nets : list of NeuralNetClassifier
    data : TrainingData
        With a held-out part.

    Returns
    -------
    soup : NeuralNetClassifier
    chosen : list of int
        Members in it, the most accurate first.

    Notes
    -----
    Members are tried in the order of their own accuracy, so the soup is never worse
    on the held-out samples than the best of them.

    References
    ----------
    Wortsman et al., Model soups: averaging weights of multiple fine-tuned models
    improves accuracy without increasing inference time, ICML 2022.
    """
    accuracies = [held_out_accuracy(net, data.valid) for net in nets]
    first, *others = np.argsort(-np.asarray(accuracies), kind="stable").tolist()
    soup, chosen, best = nets[first], [first], accuracies[first]
    for member in others:
        candidate = uniform_soup([nets[i] for i in (*chosen, member)], data)
        accuracy = held_out_accuracy(candidate, data.valid)
        if accuracy >= best:
            soup, best = candidate, accuracy
            chosen.append(member)
    return soup, chosen


def held_out_accuracy(net, valid: TrainingData) -> float:
    """Share of the held-out samples, by their weight, that a net gets right."""
    (logits,) = logits_on([net], valid)
    return weighted_mean(is_right(logits, valid.y), valid)


def final_net(net, member, data):
    """The net that a member predicts with: its last weights, or their average.

    Parameters
    ----------
    net : NeuralNetClassifier
        Settings shared by all members; not changed.
    member : MemberState
    data : TrainingData
        For the BatchNorm statistics of an average.
    """
    average = member.extra.get("average")
    if average is not None:
        member = replace(member, module=average["weights"])
    final = restore(net, member)
    kept = member.extra.get("callbacks", {})  # schedulers leave a state only
    known = {name: c for name, c in kept.items() if isinstance(c, Callback)}
    final.callbacks_ = [(name, known.get(name, c)) for name, c in final.callbacks_]
    if average is not None:
        recompute_batch_statistics(final, data)
    return final


def mean_weights(nets: Sequence):
    """A net whose weights, and buffers that are numbers, are the mean over ``nets``."""
    states = [net.module_.state_dict() for net in nets]
    shapes = [{k: getattr(v, "shape", ()) for k, v in each.items()} for each in states]
    if any(each != shapes[0] for each in shapes):
        raise InvalidInputError(
            "A soup is the mean of the weights of nets of one shape, got nets of "
            "different shapes. Combine their predictions instead."
        )
    extra = [loose_buffers(net) for net in nets]
    loose = _mean([each.get("buffers", {}) for each in extra])
    mean = MemberState(0, 0, to_cpu(_mean(states)), extra=extra[0] | {"buffers": loose})
    return restore(unfitted(nets[0]), mean)


def _mean(states):
    """Mean of each tensor; the first one of what has no mean."""

    def mean(key, value):
        if not torch.is_tensor(value):  # what get_extra_state returns
            return value
        values = [state.get(key, value) for state in states]
        same = all(each.shape == value.shape for each in values)
        numbers = value.is_floating_point() or value.is_complex()
        return torch.stack(values).mean(0) if same and numbers else value

    return {key: mean(key, value) for key, value in states[0].items()}


def recompute_batch_statistics(net, data, batch_size=STATISTICS_BATCH):
    """Set running BatchNorm statistics to those of the data under these weights.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised; changed in place.
    data : TrainingData
        Its ``transform`` is applied: members normalised what it made of the samples,
        padded pictures say, and statistics of the samples themselves would shift all
        that the next layers get.
    batch_size : int, default=512
        Layers normalise with the statistics of such a batch while those of the data
        are gathered. The layers before which no other one normalises get the exact
        moments of the data, whatever the size. Large samples pass in smaller batches,
        as in predictions, so that memory does not grow with their size.

    Notes
    -----
    Moments are pooled over batches (the variance between batches counts) and the
    variance is the unbiased one, as torch's own running statistics have it. A layer
    that stays in evaluation mode, as a frozen one does, keeps what it has, and so do
    all for a single sample, which has no variance.
    """
    norms = _norms_that_follow(net)
    if not norms or len(data) == 1:
        return
    batch_size = rows_at_once(data, batch_size)
    # Layers over vectors take no batch of one, which has no variance.
    n_batches = min(-(-len(data) // batch_size), len(data) // 2)
    batches = np.array_split(np.arange(len(data)), n_batches)
    source = DeviceData(data, net.device)
    moments = [_Moments() for _ in norms]
    with ExitStack() as undo, torch.no_grad():
        if data.transform is not None:
            # The same draws for every net.
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
    """Whether :func:`recompute_batch_statistics` has something to do for a net."""
    return bool(_norms_that_follow(net))


def _norms_that_follow(net):
    net.module_.eval()
    return [layer for layer in net.module_.modules() if _follows_data(layer)]


def _follows_data(layer) -> bool:
    """Whether training moves the running statistics of a layer in evaluation mode."""
    if not isinstance(layer, _BatchNorm) or not layer.track_running_stats:
        return False
    layer.train()
    follows = layer.training
    layer.eval()
    return follows


class _Moments:
    """Mean and sum of squared deviations per channel, over all batches so far."""

    def __init__(self):
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, layer, inputs):
        """Take in what a layer is called with; float64, pooled as Chan et al. do."""
        x = inputs[0].detach().double().transpose(0, 1).flatten(1)  # (C, n)
        count, mean = x.shape[1], x.mean(1)
        squares = (x - mean[:, None]).square().sum(1)
        total, shift = self.count + count, mean - self.mean
        self.squares = (
            self.squares + squares + shift.square() * (self.count * count / total)
        )
        self.mean = self.mean + shift * (count / total)
        self.count = total
