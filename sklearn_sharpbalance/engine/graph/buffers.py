"""Batches of all members in fixed buffers on the device, a piece of an epoch at a time.

A captured step reads its batch at the position that a counter on the device gives,
so that replaying it needs no copy and no word from Python.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from sklearn_sharpbalance.data.augment import EpochAugment, PictureTransform
from sklearn_sharpbalance.data.batches import epoch_batches
from sklearn_sharpbalance.data.training_data import to_device
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.runtime.rng import epoch_rng, epoch_seed, seed_generators

__all__ = ["EpochFeed"]

HALF_BYTES = 256 * 2**20


class EpochFeed:
    """Buffers that hold the next steps of every member.

    They have two halves: while the steps of one are replayed, the other is filled.

    Parameters
    ----------
    sessions : list of MemberSession
    source : DeviceData
    segment : Segment
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

    def __init__(self, sessions, source, segment, masks):
        self.sessions, self.source, self.segment = sessions, source, segment
        self.masks = masks
        sizes, device = segment.sizes, source.device
        width = sizes.sam + sizes.normal
        sample = source.take(torch.zeros(1, dtype=torch.int64))
        bytes_a_step = len(sessions) * width * sample.numel() * sample.element_size()
        self.length = min(sizes.n_batches, max(1, HALF_BYTES // bytes_a_step))
        self.draws_apart = isinstance(segment.transform, PictureTransform | None)
        if not self.draws_apart:
            # It draws batch by batch from the one RNG, which must not be shared
            # between members: each member's epoch is done in one go.
            self.length = sizes.n_batches
        shape = (2 * self.length, width)
        n = len(sessions)
        # A transform decides on dtype and size of what it returns.
        self.x: list[torch.Tensor] = [sample.new_empty(0) for _ in range(n)]
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
        for buffers in (self.y, self.weight):
            self._beside.keep(buffers)

    def pieces(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Fill the buffers piece by piece.

        Yields where the steps of a piece begin in the buffers, and how many there
        are. Work on one piece should be under way, not done, when the next is asked
        for: that is when the following one is fetched.
        """
        n_batches = self.segment.sizes.n_batches
        for start in range(0, n_batches, self.length):
            self._half = 1 - self._half
            if self._ahead == (epoch, start):
                self._beside.join()
            else:
                self._fill_half(self._half, epoch, start)
            self._ahead = None
            if start == 0:  # not ahead: callbacks may have set the rate to start from
                self._rates = self._rates_of(epoch)
                self.last_lr = [float(rates[-1]) for rates in self._rates]
            self._fill_rates(self._half, start)
            self._beside.mark()
            yield self._half * self.length, min(self.length, n_batches - start)
            following = (epoch, start + self.length)
            if following[1] >= n_batches:
                following = (epoch + 1, 0)
            if following[0] < self.segment.stop:
                with self._beside.since_mark():
                    self._fill_half(1 - self._half, *following)
                self._ahead = following

    def _rates_of(self, epoch):
        """Learning rates (n_batches,) of each session."""
        n_batches = self.segment.sizes.n_batches
        factors = [self.segment.lr_factor(epoch, t) for t in range(n_batches)]
        groups = [session.net.optimizer_.param_groups[0] for session in self.sessions]
        return [torch.tensor(factors) * group["initial_lr"] for group in groups]

    def _fill_rates(self, half, start):
        """Write the learning rates of the steps from ``start`` on into a half."""
        first, device = half * self.length, self.source.device
        for lr, rates in zip(self.lr, self._rates):
            own = rates[start : start + self.length]
            lr[first : first + len(own)] = to_device(own, device)

    def _fill_half(self, half, epoch, start):
        """Write the steps of an epoch from ``start`` on into half of the buffers."""
        stop = min(start + self.length, self.segment.sizes.n_batches)
        first = half * self.length
        if self._dealt_epoch != epoch:
            self._dealt, self._dealt_epoch = {}, epoch
        for i in range(len(self.sessions)):
            if i not in self._dealt:
                self._dealt[i] = self._deal(i, epoch)
            places = slice(first, first + stop - start)
            self._fill(i, places, start, stop, *self._dealt[i])

    def _deal(self, i, epoch):
        """Rows, shares and augmentation of one member's epoch."""
        seed, device = self.sessions[i].state.seed, self.source.device
        batches = epoch_batches(
            self.masks[i], self.segment.sizes, epoch_rng(seed, epoch)
        )
        seed_generators(epoch_seed(seed, epoch), device)
        augment = EpochAugment(self.segment.transform, batches.indices.shape, device)
        rows = torch.from_numpy(batches.indices)
        share = to_device(torch.from_numpy(batches.share), device)
        return rows, share, augment

    def _fill(self, i, places, start, stop, rows, share, augment):
        """Write steps ``start`` to ``stop`` of one member into its buffers."""
        source = self.source
        rows, share = rows[start:stop], share[start:stop]
        x = source.take(rows)
        if self.draws_apart:
            self._put(i, places, augment.batches(start, stop, x))
        else:
            for t in range(start, stop):
                place = places.start + t - start
                batch = augment.batch(t, x[t - start])
                self._put(i, slice(place, place + 1), batch[None])
        rows = to_device(rows, source.device)
        self.y[i][places] = source.y[rows]
        if source.weight is not None:
            share = share * source.weight[rows]
        self.weight[i][places] = share

    def _put(self, i, places, x):
        """Write samples (T, B, ...) of one member into its buffer."""
        if not len(self.x[i]):
            self.x[i] = x.new_empty((2 * self.length, *x.shape[1:]))
            self._beside.keep(self.x[i : i + 1])
        buffer = self.x[i]
        if x.shape[1:] != buffer.shape[1:] or x.dtype != buffer.dtype:
            raise UnsupportedEngineError(
                "train_transform returned batches of different size or dtype, "
                f"{tuple(buffer.shape[1:])} of {buffer.dtype} and "
                f"{tuple(x.shape[1:])} of {x.dtype}, but every step reads the same "
                "buffer. Use engine='skorch', or let it return batches of one kind."
            )
        buffer[places] = x


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
