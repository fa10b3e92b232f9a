"""The batches of joint training: one order that all members share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.batches import epoch_batches
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.members.segment import Segment
from sklearn_sharpbalance.runtime.rng import epoch_rng, epoch_seed, seed_generators

__all__ = ["JointBatch", "JointFeed", "RandomStreams", "class_shares", "draw_members"]


@dataclass(frozen=True)
class JointBatch:
    """What all members see in one step.

    Attributes
    ----------
    x : Tensor or dict of Tensor
        Labelled samples, augmented.
    y, weight : Tensor of shape (B,)
        Class codes, and weight of each sample in the mean over the batch.
    drawn : list of int
        Members whose pairs pay for being alike, in growing order.
    unlabeled : Tensor, dict of Tensor or None
        Samples without labels.
    prior : Tensor of shape (C,)
        Share of each class among the training samples, see :func:`class_shares`.
    """

    x: Any
    y: torch.Tensor
    weight: torch.Tensor
    drawn: list[int]
    unlabeled: Any
    prior: torch.Tensor


def draw_members(n_members, n_drawn, n_steps, rng):
    """Members drawn in each step: uniform subsets, in growing order.

    Parameters
    ----------
    n_members : int
    n_drawn : int or None
        None, or as many as there are, takes all.
    n_steps : int
    rng : numpy.random.Generator

    Returns
    -------
    members : list of list of int
    """
    everyone = np.tile(np.arange(n_members), (n_steps, 1))
    if n_drawn is None or n_drawn >= n_members:
        return everyone.tolist()
    return np.sort(rng.permuted(everyone, axis=1)[:, :n_drawn], axis=1).tolist()


def unlabeled_rows(n_samples, n_batches, width, rng):
    """Rows of the unlabelled samples in each batch, (n_batches, width or fewer).

    The samples go round and round in an order that is shuffled for every round. A
    single one stands in a batch twice, for BatchNorm's variance.
    """
    width = min(width, max(2, n_samples))
    n_rounds = -(-n_batches * width // n_samples)
    rows = np.concatenate([rng.permutation(n_samples) for _ in range(n_rounds)])
    return rows[: n_batches * width].reshape(n_batches, width)


def class_shares(data: TrainingData) -> torch.Tensor:
    """Weighted share of each class among the training samples, (C,) float32.

    A small class may lie in the held-out part as a whole: it has a share of zero.

    Examples
    --------
    >>> held_out = TrainingData(np.zeros((1, 2)), np.array([2]))
    >>> data = TrainingData(np.zeros((4, 2)), np.array([0, 1, 1, 1]), valid=held_out)
    >>> class_shares(data)
    tensor([0.2500, 0.7500, 0.0000])
    """
    labels = data.y if data.valid is None else np.append(data.y, data.valid.y)
    counts = np.bincount(data.y, data.weight, minlength=labels.max() + 1)
    return torch.as_tensor(counts / counts.sum(), dtype=torch.float32)


class RandomStreams:
    """Torch's one RNG as several streams, taken up where each was left.

    Members trained side by side then draw the dropout that each would draw alone.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device):
        self.cuda = torch.cuda if device.type == "cuda" else None
        self.device = device
        self.states: list[Any] = []

    def start(self, seeds, epoch):
        """Seed one stream for each of the seeds, for one epoch."""
        self.states = []
        for seed in seeds:
            seed_generators(epoch_seed(seed, epoch), self.device)
            self.states.append(self._get())

    def run(self, stream, function, *args):
        """Call the function while it draws from one stream."""
        self._set(self.states[stream])
        result = function(*args)
        self.states[stream] = self._get()
        return result

    def each(self, stream, source, indices):
        """Batches of a source, whose items draw from one stream."""
        batches = source.iterate(indices)
        if not source.is_dataset:  # arrays draw nothing
            yield from batches
            return
        while (batch := self.run(stream, next, batches, None)) is not None:
            yield batch

    def _get(self):
        if self.cuda is not None:
            return torch.get_rng_state(), self.cuda.get_rng_state(self.device)
        return torch.get_rng_state(), None

    def _set(self, state):
        torch.set_rng_state(state[0])
        if self.cuda is not None:
            self.cuda.set_rng_state(state[1], self.device)


class JointFeed:
    """Epochs of :class:`JointBatch`, each a function of the seed and its number.

    Parameters
    ----------
    data : TrainingData
    unlabeled : ndarray, dict, Dataset or None
        Samples without labels.
    segment : Segment
    n_members : int
    n_drawn : int or None
        Members drawn in each step; None takes all.
    seed : int
        Of the order, the draws and the augmentation.
    device : torch.device
    trunk : callable or None, default=None
        Applied to every batch after the augmentation.
    loader_params : dict, default=None
        For the DataLoader of a Dataset.
    """

    def __init__(
        self,
        data: TrainingData,
        unlabeled,
        segment: Segment,
        *,
        n_members,
        n_drawn,
        seed,
        device,
        trunk: Callable[[Any], torch.Tensor] | None = None,
        loader_params=None,
    ):
        self.segment, self.n_members, self.n_drawn = segment, n_members, n_drawn
        self.seed, self.device, self.trunk = seed, device, trunk
        self.source = DeviceData(data, device, loader_params)
        self.unlabeled = None
        if unlabeled is not None:
            self.unlabeled = DeviceData(unlabeled, device, loader_params)
        self.no_mask = np.zeros(len(data), dtype=bool)
        self.prior = class_shares(data).to(device)

    def epoch(self, epoch, streams, stream) -> Iterator[JointBatch]:
        """Batches of one epoch; augmentation draws from the given stream."""
        source, sizes = self.source, self.segment.sizes
        dealt = epoch_batches(self.no_mask, sizes, epoch_rng(self.seed, epoch))
        share = torch.as_tensor(dealt.share, device=self.device)
        drawn = draw_members(
            self.n_members, self.n_drawn, sizes.n_batches, self._rng(epoch, 1)
        )
        augment = streams.run(
            stream, EpochAugment, self.segment.transform, share.shape, self.device
        )
        others = self._unlabeled_batches(epoch, streams, stream)
        for t, (x, rows) in enumerate(streams.each(stream, source, dealt.indices)):
            weight = (
                share[t] if source.weight is None else share[t] * source.weight[rows]
            )
            x = self._features(streams.run(stream, augment.batch, t, x))
            yield JointBatch(
                x, source.y[rows], weight, drawn[t], next(others), self.prior
            )

    def _unlabeled_batches(self, epoch, streams, stream):
        """Unlabelled batches beside the labelled ones; None where there are none."""
        sizes = self.segment.sizes
        if self.unlabeled is None:
            yield from (None for _ in range(sizes.n_batches))
            return
        rows = unlabeled_rows(
            len(self.unlabeled.y), sizes.n_batches, sizes.normal, self._rng(epoch, 2)
        )
        augment = streams.run(
            stream, EpochAugment, self.segment.transform, rows.shape, self.device
        )
        for t, (x, _) in enumerate(streams.each(stream, self.unlabeled, rows)):
            yield self._features(streams.run(stream, augment.batch, t, x))

    def _features(self, x):
        return x if self.trunk is None else self.trunk(x)

    def _rng(self, epoch, purpose):
        return np.random.default_rng([self.seed, epoch, purpose])
