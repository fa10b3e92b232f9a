"""Batches of all members in fixed buffers on the device, a chunk of an epoch at a time.

A captured step reads its batch at the position of a counter on the device, so that a
replay needs neither a copy nor an argument from Python.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch

from sklearn_sharpbalance.data.augment import EpochAugment, ImageTransform
from sklearn_sharpbalance.data.batches import BatchLayout
from sklearn_sharpbalance.data.training_data import to_device
from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.runtime.rng import epoch_rng, epoch_seed, seed_generators

__all__ = ["EpochFeed"]

HALF_BYTES = 256 * 2**20


class _MemberEpoch(NamedTuple):
    """The batches of one member in one epoch."""

    rows: torch.Tensor  # (n_batches, B)
    augment: EpochAugment


class EpochFeed:
    """Buffers with the batches of every member's next steps.

    They have two halves: while the steps of one half are replayed, the other is filled.
    Each list has one entry for each session.

    Attributes
    ----------
    x, y, weight : list of Tensor (2 * T, B, ...)
        Samples, labels, and weight in the mean over the batch.
    lr : list of Tensor (2 * T,)
        Learning rate of the steps.
    last_lr : list of float
        Learning rate of the last step of the epoch.
    is_sam : ndarray of shape (n_batches, number of sessions), dtype bool
        Whether the samples of a session's batch get SAM.
    """

    def __init__(self, sessions, source, segment, masks):
        self.sessions, self.source, self.segment = sessions, source, segment
        sizes, device = segment.sizes, source.device
        self.layouts = [BatchLayout(mask, sizes) for mask in masks]
        self.is_sam = np.stack([layout.is_sam for layout in self.layouts], axis=1)
        self.shares = [
            to_device(torch.from_numpy(layout.share), device) for layout in self.layouts
        ]
        sample = source.take(torch.zeros(1, dtype=torch.int64))
        step_bytes = (
            len(sessions) * sizes.width * sample.numel() * sample.element_size()
        )
        self.length = min(sizes.n_batches, max(1, HALF_BYTES // step_bytes))
        self.has_own_draws = isinstance(segment.transform, ImageTransform | None)
        if not self.has_own_draws:
            # Other transforms draw each batch from the global generator. Members must
            # not alternate in its use: the buffer of a member has a whole epoch.
            self.length = sizes.n_batches
        shape = (2 * self.length, sizes.width)
        n = len(sessions)
        # Made later: a transform may change dtype and size.
        self.x: list[torch.Tensor] = [sample.new_empty(0) for _ in range(n)]
        self.y = [source.y.new_empty(shape) for _ in range(n)]
        self.weight = [torch.empty(shape, device=device) for _ in range(n)]
        self.lr = [torch.empty(shape[0], device=device) for _ in range(n)]
        self.last_lr = [0.0] * n
        self._drawn: dict[int, _MemberEpoch] = {}  # by session
        self._drawn_epoch = -1
        self._rates: list[torch.Tensor] = []  # of the current epoch
        self._prefetched: tuple[int, int] | None = None  # epoch and first step
        self._half = 1  # the one used last
        self._side_stream = _SideStream(device)
        for buffers in (self.y, self.weight):
            self._side_stream.keep(buffers)

    def chunks(self, epoch: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the position of each chunk's first step, and ``is_sam`` of its steps.

        The caller launches these steps and asks for the next chunk without waiting for
        them: the chunk after it is fetched meanwhile.
        """
        n_batches = self.segment.sizes.n_batches
        for start in range(0, n_batches, self.length):
            self._half = 1 - self._half
            if self._prefetched == (epoch, start):
                self._side_stream.join()
            else:
                self._fill_half(self._half, epoch, start)
            self._prefetched = None
            if start == 0:  # not prefetched: callbacks may have set the initial rate
                self._rates = self._rates_of(epoch)
                self.last_lr = [float(rates[-1]) for rates in self._rates]
            self._fill_rates(self._half, start)
            self._side_stream.mark()
            yield self._half * self.length, self.is_sam[start : start + self.length]
            next_epoch, next_start = epoch, start + self.length
            if next_start >= n_batches:
                next_epoch, next_start = epoch + 1, 0
            if next_epoch < self.segment.stop:
                with self._side_stream.since_mark():
                    self._fill_half(1 - self._half, next_epoch, next_start)
                self._prefetched = (next_epoch, next_start)

    def _rates_of(self, epoch):
        """Return the learning rates (n_batches,) of each session."""
        n_batches = self.segment.sizes.n_batches
        factors = [self.segment.lr_factor(epoch, t) for t in range(n_batches)]
        groups = [session.net.optimizer_.param_groups[0] for session in self.sessions]
        return [torch.tensor(factors) * group["initial_lr"] for group in groups]

    def _fill_rates(self, half, start):
        """Write the learning rates of the steps from ``start`` on into a half."""
        first, device = half * self.length, self.source.device
        for lr, rates in zip(self.lr, self._rates):
            chunk = rates[start : start + self.length]
            lr[first : first + len(chunk)] = to_device(chunk, device)

    def _fill_half(self, half, epoch, start):
        """Write the steps of an epoch from ``start`` on into half of the buffers."""
        stop = min(start + self.length, self.segment.sizes.n_batches)
        first = half * self.length
        if self._drawn_epoch != epoch:
            self._drawn, self._drawn_epoch = {}, epoch
        for i in range(len(self.sessions)):
            if i not in self._drawn:
                self._drawn[i] = self._draw(i, epoch)
            self._fill(i, slice(first, first + stop - start), start, stop)

    def _draw(self, i, epoch):
        """Draw the batches and the augmentation of one member's epoch."""
        seed, device = self.sessions[i].state.seed, self.source.device
        rows = torch.from_numpy(self.layouts[i].epoch(epoch_rng(seed, epoch)))
        seed_generators(epoch_seed(seed, epoch), device)
        augment = EpochAugment(self.segment.transform, rows.shape, device)
        return _MemberEpoch(rows=rows, augment=augment)

    def _fill(self, i, places, start, stop):
        """Write steps ``start`` to ``stop`` of one member into its buffers."""
        source, augment = self.source, self._drawn[i].augment
        rows, share = self._drawn[i].rows[start:stop], self.shares[i][start:stop]
        x = source.take(rows)
        if self.has_own_draws:
            self._put(i, places, augment.batches(start, stop, x))
        else:
            for t in range(start, stop):
                place = places.start + t - start
                batch = augment.batch(t, x[t - start, : self.layouts[i].widths[t]])
                self._put(i, slice(place, place + 1), batch[None])
        rows = to_device(rows, source.device)
        self.y[i][places] = source.y[rows]
        if source.weight is not None:
            share = share * source.weight[rows]
        self.weight[i][places] = share

    def _put(self, i, places, x):
        """Write samples (T, B, ...) of one member into its buffer, maybe wider."""
        if not len(self.x[i]):
            self.x[i] = x.new_empty((*self.y[i].shape, *x.shape[2:]))
            self._side_stream.keep(self.x[i : i + 1])
        buffer = self.x[i]
        if x.shape[2:] != buffer.shape[2:] or x.dtype != buffer.dtype:
            raise UnsupportedEngineError(
                "train_transform returned batches of different size or dtype, "
                f"{tuple(buffer.shape[2:])} of {buffer.dtype} and "
                f"{tuple(x.shape[2:])} of {x.dtype}, but every step reads the same "
                "buffer. Use engine='skorch', or return batches of one size and dtype."
            )
        buffer[places, : x.shape[1]] = x


class _SideStream:
    """A second stream, which fills the buffers; on a CPU there is none."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            self.stream = torch.cuda.Stream(device)
            self.event = torch.cuda.Event()

    def keep(self, tensors):
        """Do not reuse the memory of freed tensors before this stream is done."""
        for tensor in tensors if self.on_gpu else ():
            tensor.record_stream(self.stream)

    def mark(self):
        """Record the current position of the training stream."""
        if self.on_gpu:
            self.event.record()

    def since_mark(self):
        """Return a context for work that waits for the mark, not for later work."""
        if not self.on_gpu:
            return nullcontext()
        self.stream.wait_event(self.event)
        return torch.cuda.stream(self.stream)

    def join(self):
        """Let the training stream wait for this stream."""
        if self.on_gpu:
            torch.cuda.current_stream().wait_stream(self.stream)
