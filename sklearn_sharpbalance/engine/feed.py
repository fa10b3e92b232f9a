"""Batches of all members in fixed buffers on the device, a piece of an epoch at a time.

A captured step reads its batch at the position that a counter on the device gives,
so that replaying it needs no copy and no word from Python.
"""

from collections.abc import Iterator

import torch

from sklearn_sharpbalance.members.augment import EpochAugment, PictureTransform
from sklearn_sharpbalance.members.batches import epoch_batches
from sklearn_sharpbalance.members.data import to_device
from sklearn_sharpbalance.members.state import epoch_rng, seeded

__all__ = ["EpochFeed"]

PIECE_BYTES = 512 * 2**20


class EpochFeed:
    """Buffers that hold the next steps of every member.

    Parameters
    ----------
    sessions : list of MemberSession
    source : DeviceData
    phase : Phase
    masks : list of ndarray of shape (N,), dtype bool
        Of the sessions.

    Attributes
    ----------
    x, y, weight : list of Tensor (T, B, ...)
        For each session: samples, labels, and weight in the mean over the batch.
    lr : list of Tensor (T,)
        For each session: learning rate of the steps.
    last_lr : list of float
        For each session: learning rate of the last step of the epoch.
    """

    def __init__(self, sessions, source, phase, masks):
        self.sessions, self.source, self.phase = sessions, source, phase
        self.masks = masks
        sizes, device = phase.sizes, source.device
        width = sizes.sam + sizes.normal
        sample = source.take(torch.zeros(1, dtype=torch.int64))
        bytes_a_step = len(sessions) * width * sample.numel() * sample.element_size()
        self.length = min(sizes.n_batches, max(1, PIECE_BYTES // bytes_a_step))
        if phase.transform is not None and not _draws_apart(phase.transform):
            # It draws batch by batch from the one RNG, which must not be shared
            # between members: each member's epoch is done in one go.
            self.length = sizes.n_batches
        shape = (self.length, width)
        n = len(sessions)
        self.x = [sample.new_empty((*shape, *sample.shape[1:])) for _ in range(n)]
        self.y = [source.y.new_empty(shape) for _ in range(n)]
        self.weight = [torch.empty(shape, device=device) for _ in range(n)]
        self.lr = [torch.empty(self.length, device=device) for _ in range(n)]
        self.last_lr = [0.0] * n

    def pieces(self, epoch: int) -> Iterator[int]:
        """Fill the buffers piece by piece; yields how many steps each holds."""
        n_batches, device = self.phase.sizes.n_batches, self.source.device
        groups = [session.net.optimizer_.param_groups[0] for session in self.sessions]
        factors = torch.tensor(
            [self.phase.lr_factor(epoch, t) for t in range(n_batches)]
        )
        rates = [factors * group["initial_lr"] for group in groups]
        self.last_lr = [float(rate[-1]) for rate in rates]
        dealt: dict[int, tuple] = {}
        for start in range(0, n_batches, self.length):
            stop = min(start + self.length, n_batches)
            for i in range(len(self.sessions)):
                self.lr[i][: stop - start] = to_device(rates[i][start:stop], device)
                if i not in dealt:
                    dealt[i] = self._deal(i, epoch)
                self._fill(i, start, stop, *dealt[i])
            yield stop - start

    def _deal(self, i, epoch):
        """Rows, shares and augmentation of one member's epoch."""
        seed, device = self.sessions[i].state.seed, self.source.device
        batches = epoch_batches(self.masks[i], self.phase.sizes, epoch_rng(seed, epoch))
        seeded.reseed(seed, epoch, device)
        augment = EpochAugment(self.phase.transform, batches.indices.shape, device)
        rows = torch.from_numpy(batches.indices)
        share = to_device(torch.from_numpy(batches.share), device)
        return rows, share, augment

    def _fill(self, i, start, stop, rows, share, augment):
        """Write steps ``start`` to ``stop`` of one member into its buffers."""
        source, n = self.source, stop - start
        rows, share = rows[start:stop], share[start:stop]
        self.x[i][:n] = augment.batches(start, stop, source.take(rows))
        rows = to_device(rows, source.device)
        self.y[i][:n] = source.y[rows]
        if source.weight is not None:
            share = share * source.weight[rows]
        self.weight[i][:n] = share


def _draws_apart(transform):
    return isinstance(transform, PictureTransform)
