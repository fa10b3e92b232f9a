"""Batches of all members in fixed buffers on the device, a piece of an epoch at a time.

A captured step reads its batch at the position that a counter on the device gives,
so that replaying it needs no copy and no word from Python.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from sklearn_sharpbalance.members.augment import EpochAugment, PictureTransform
from sklearn_sharpbalance.members.batches import epoch_batches
from sklearn_sharpbalance.members.data import to_device
from sklearn_sharpbalance.members.state import epoch_rng, seeded

__all__ = ["EpochFeed"]

HALF_BYTES = 256 * 2**20


class EpochFeed:
    """Buffers that hold the next steps of every member.

    They have two halves: while the steps of one are replayed, the other is filled.

    Parameters
    ----------
    sessions : list of MemberSession
    source : DeviceData
    phase : Phase
    masks : list of ndarray of shape (N,), dtype bool
        Of the sessions.

    Attributes
    ----------
    x, y, weight : list of Tensor (2 * T, B, ...)
        For each session: samples, labels, and weight in the mean over the batch.
    lr : list of Tensor (2 * T,)
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
        self.length = min(sizes.n_batches, max(1, HALF_BYTES // bytes_a_step))
        if phase.transform is not None and not _draws_apart(phase.transform):
            # It draws batch by batch from the one RNG, which must not be shared
            # between members: each member's epoch is done in one go.
            self.length = sizes.n_batches
        shape = (2 * self.length, width)
        n = len(sessions)
        self.x = [sample.new_empty((*shape, *sample.shape[1:])) for _ in range(n)]
        self.y = [source.y.new_empty(shape) for _ in range(n)]
        self.weight = [torch.empty(shape, device=device) for _ in range(n)]
        self.lr = [torch.empty(shape[0], device=device) for _ in range(n)]
        self.last_lr = [0.0] * n
        self._dealt: dict[int, tuple] = {}
        self._dealt_epoch = -1
        self._rates: list[torch.Tensor] = []  # of the epoch that is dealt
        self._ahead: tuple[int, int] | None = None  # epoch and start of what is filled
        self._half = 1  # that was used last
        self._beside = _Beside(device)
        for buffers in (self.x, self.y, self.weight, self.lr):
            self._beside.keep(buffers)

    def pieces(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Fill the buffers piece by piece.

        Yields where the steps of a piece begin in the buffers, and how many there
        are. Work on one piece should be under way, not done, when the next is asked
        for: that is when the following one is fetched.
        """
        n_batches = self.phase.sizes.n_batches
        for start in range(0, n_batches, self.length):
            self._half = 1 - self._half
            if self._ahead == (epoch, start):
                self._beside.join()
            else:
                self._fill_half(self._half, epoch, start)
            self._ahead = None
            if start == 0:  # later the next epoch may be dealt
                self.last_lr = [float(rates[-1]) for rates in self._rates]
            self._beside.mark()
            yield self._half * self.length, min(self.length, n_batches - start)
            following = (epoch, start + self.length)
            if following[1] >= n_batches:
                following = (epoch + 1, 0)
            if following[0] < self.phase.stop:
                with self._beside.since_mark():
                    self._fill_half(1 - self._half, *following)
                self._ahead = following

    def _rates_of(self, epoch):
        """Learning rates (n_batches,) of each session."""
        n_batches = self.phase.sizes.n_batches
        factors = [self.phase.lr_factor(epoch, t) for t in range(n_batches)]
        groups = [session.net.optimizer_.param_groups[0] for session in self.sessions]
        return [torch.tensor(factors) * group["initial_lr"] for group in groups]

    def _fill_half(self, half, epoch, start):
        """Write the steps of an epoch from ``start`` on into half of the buffers."""
        stop = min(start + self.length, self.phase.sizes.n_batches)
        first = half * self.length
        if self._dealt_epoch != epoch:
            self._dealt, self._dealt_epoch = {}, epoch
            self._rates = self._rates_of(epoch)
        for i in range(len(self.sessions)):
            if i not in self._dealt:
                self._dealt[i] = self._deal(i, epoch)
            places = slice(first, first + stop - start)
            self.lr[i][places] = to_device(
                self._rates[i][start:stop], self.source.device
            )
            self._fill(i, places, start, stop, *self._dealt[i])

    def _deal(self, i, epoch):
        """Rows, shares and augmentation of one member's epoch."""
        seed, device = self.sessions[i].state.seed, self.source.device
        batches = epoch_batches(self.masks[i], self.phase.sizes, epoch_rng(seed, epoch))
        seeded.reseed(seed, epoch, device)
        augment = EpochAugment(self.phase.transform, batches.indices.shape, device)
        rows = torch.from_numpy(batches.indices)
        share = to_device(torch.from_numpy(batches.share), device)
        return rows, share, augment

    def _fill(self, i, places, start, stop, rows, share, augment):
        """Write steps ``start`` to ``stop`` of one member into its buffers."""
        source = self.source
        rows, share = rows[start:stop], share[start:stop]
        self.x[i][places] = augment.batches(start, stop, source.take(rows))
        rows = to_device(rows, source.device)
        self.y[i][places] = source.y[rows]
        if source.weight is not None:
            share = share * source.weight[rows]
        self.weight[i][places] = share


class _Beside:
    """A stream beside the one that trains; on a CPU things are done at once."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            self.stream = torch.cuda.Stream(device)
            self.event = torch.cuda.Event()

    def keep(self, tensors):
        """Let memory that is freed while work is under way wait for its end."""
        for tensor in tensors if self.on_gpu else ():
            tensor.record_stream(self.stream)

    def mark(self):
        """Note how far the training stream has come."""
        if self.on_gpu:
            self.event.record()

    def since_mark(self):
        """Context of work that waits for the mark and for nothing after it."""
        if not self.on_gpu:
            return nullcontext()
        self.stream.wait_event(self.event)
        return torch.cuda.stream(self.stream)

    def join(self):
        """Let the training stream wait for the work beside it."""
        if self.on_gpu:
            torch.cuda.current_stream().wait_stream(self.stream)


def _draws_apart(transform):
    return isinstance(transform, PictureTransform)
