"""Batches of joint training, which are the same for all members."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sklearn_sharpbalance.data.augment import EpochAugment
from sklearn_sharpbalance.data.batches import BatchLayout
from sklearn_sharpbalance.data.training_data import DeviceData, TrainingData
from sklearn_sharpbalance.members.schedules import Segment
from sklearn_sharpbalance.runtime.rng import epoch_rng, epoch_seed, seed_generators


@dataclass(frozen=True)
class JointBatch:
    """Samples of one training step, the same for all members."""

    x: Any  # labelled samples, augmented
    y: torch.Tensor  # (B,) class codes
    weight: torch.Tensor  # (B,) of each sample in the mean over the batch
    drawn: list[int]  # members in the diversity term, in ascending order
    unlabeled: Any  # samples without labels, or None
    prior: torch.Tensor  # (C,) from class_fractions


def draw_members(n_members, n_drawn, n_steps, rng):
    """Draw a uniform random subset of the members for each step, in ascending order.

    ``n_drawn`` of None, or at least ``n_members``, takes all.
    """
    everyone = np.tile(np.arange(n_members), (n_steps, 1))
    if n_drawn is None or n_drawn >= n_members:
        return everyone.tolist()
    return np.sort(rng.permuted(everyone, axis=1)[:, :n_drawn], axis=1).tolist()


def unlabeled_rows(n_samples, n_batches, width, rng):
    """Return rows of the unlabelled samples for each batch, (n_batches, <= width).

    The samples are repeated as often as needed, and shuffled for each repetition. A
    single sample appears twice in a batch, because BatchNorm needs a variance.
    """
    width = min(width, max(2, n_samples))
    n_rounds = -(-n_batches * width // n_samples)
    rows = np.concatenate([rng.permutation(n_samples) for _ in range(n_rounds)])
    return rows[: n_batches * width].reshape(n_batches, width)


def class_fractions(data: TrainingData) -> torch.Tensor:
    """Return the weighted fraction of each class in the training samples, (C,) float32.

    A class whose samples are all in the validation set has the fraction zero.

    Examples
    --------
    >>> held_out = TrainingData(np.zeros((1, 2)), np.array([2]))
    >>> data = TrainingData(np.zeros((4, 2)), np.array([0, 1, 1, 1]), valid=held_out)
    >>> class_fractions(data)
    tensor([0.2500, 0.7500, 0.0000])
    """
    labels = data.y if data.valid is None else np.append(data.y, data.valid.y)
    counts = np.bincount(data.y, data.weight, minlength=labels.max() + 1)
    return torch.as_tensor(counts / counts.sum(), dtype=torch.float32)


class JointFeed:
    """Yields the batches of an epoch, which depend on the seed and the epoch only.

    The trunk is applied to every batch after the augmentation.
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
        no_mask = np.zeros(len(data), dtype=bool)
        self.layout = BatchLayout(no_mask, segment.sizes)
        self.prior = class_fractions(data).to(device)

    def epoch(self, epoch) -> Iterator[JointBatch]:
        """Yield the batches of an epoch; items and augmentation draw from its seed."""
        seed_generators(epoch_seed(self.seed, epoch), self.device)
        source, sizes = self.source, self.segment.sizes
        indices = self.layout.epoch(epoch_rng(self.seed, epoch))
        share = torch.as_tensor(self.layout.share, device=self.device)
        drawn = draw_members(
            self.n_members,
            self.n_drawn,
            n_steps=sizes.n_batches,
            rng=self._rng(epoch, 1),
        )
        augment = EpochAugment(self.segment.transform, share.shape, self.device)
        unlabeled = self._unlabeled_batches(epoch)
        for t, (x, rows) in enumerate(source.iterate(indices)):
            weight = (
                share[t] if source.weight is None else share[t] * source.weight[rows]
            )
            yield JointBatch(
                x=self._features(augment.batch(t, x)),
                y=source.y[rows],
                weight=weight,
                drawn=drawn[t],
                unlabeled=next(unlabeled),
                prior=self.prior,
            )

    def _unlabeled_batches(self, epoch):
        """Yield an unlabelled batch, or None, for each labelled batch."""
        sizes = self.segment.sizes
        if self.unlabeled is None:
            yield from (None for _ in range(sizes.n_batches))
            return
        rows = unlabeled_rows(
            len(self.unlabeled.y),
            sizes.n_batches,
            width=sizes.width,
            rng=self._rng(epoch, 2),
        )
        augment = EpochAugment(self.segment.transform, rows.shape, self.device)
        for t, (x, _) in enumerate(self.unlabeled.iterate(rows)):
            yield self._features(augment.batch(t, x))

    def _features(self, x):
        return x if self.trunk is None else self.trunk(x)

    def _rng(self, epoch, purpose):
        return np.random.default_rng([self.seed, epoch, purpose])
