"""The samples in each batch of an epoch: a batch has SAM samples or normal ones only.

All batches of a kind have the same number of places in a phase, so that a computation
can be captured once and replayed. Unused places are filled with another sample of the
same kind and have weight zero: every sample counts exactly once per epoch.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["BatchLayout", "BatchSizes", "batch_sizes"]

MANY = 25  # batches in an epoch, to which a few more do not matter


@dataclass(frozen=True)
class BatchSizes:
    """Number and width of the batches of a phase, the same for all members.

    Attributes
    ----------
    n_sam, n_normal : int
        Batches of SAM samples and of normal samples in an epoch.
    sam_width, normal_width : int
        Places in a batch.
    """

    n_sam: int
    n_normal: int
    sam_width: int
    normal_width: int

    @property
    def width(self) -> int:
        """Places in the larger batches."""
        return max(self.sam_width, self.normal_width)

    def width_of(self, is_sam) -> int:
        """Places in the batches of a kind."""
        return self.sam_width if is_sam else self.normal_width

    @property
    def n_batches(self) -> int:
        """Number of batches in an epoch."""
        return self.n_sam + self.n_normal


def batch_sizes(masks, batch_size) -> BatchSizes:
    """Return number and width of the batches for the SAM masks of all members.

    Parameters
    ----------
    masks : ndarray of shape (M, N), dtype bool
    batch_size : int
        Samples in a batch. Batches are of nearly equal size: 1347 samples at 128 are
        eleven batches of 122 or 123, not ten of 128 and one of 67. ``MANY`` batches get
        a few more if there are two kinds, so that the width is that of one kind: for
        another one a GPU library looks for its fastest algorithms again, for a second.

    Examples
    --------
    >>> import numpy as np
    >>> batch_sizes(np.array([[True] * 6 + [False] * 4]), batch_size=2)
    BatchSizes(n_sam=3, n_normal=2, sam_width=2, normal_width=2)
    """
    n, counts = masks.shape[1], masks.sum(axis=1)
    n_batches = -(-n // batch_size)
    sam_width = normal_width = width = -(-n // n_batches)
    n_sam, n_normal = (-(-own.max() // width) for own in (counts, n - counts))
    more = n_batches + 2 + n_batches // 50  # always as many: searches stack candidates
    if n_batches >= MANY and n_batches < n_sam + n_normal <= more:
        n_normal = more - n_sam
    elif n_sam + n_normal > n_batches:
        n_batches = max(2, n_batches)
        n_sam = min(max(1, round(n_batches * masks.mean())), n_batches - 1)
        n_normal = n_batches - n_sam
        # The samples of a member may be all of one kind.
        sam_parts = np.where(counts == n, n_batches, n_sam)
        normal_parts = np.where(counts == 0, n_batches, n_normal)
        sam_width = (-(-counts // sam_parts)).max()
        normal_width = (-(-(n - counts) // normal_parts)).max()
    return BatchSizes(
        n_sam=int(n_sam),
        n_normal=int(n_normal),
        sam_width=max(2, int(sam_width)),  # BatchNorm needs a variance
        normal_width=max(2, int(normal_width)),
    )


class BatchLayout:
    """What the batches of all epochs of a phase have in common, for one member.

    Parameters
    ----------
    mask : ndarray of shape (N,), dtype bool
        True for the samples that get SAM.
    sizes : BatchSizes
    width : int, default=None
        Places of ``share``; None is the larger width of ``sizes``.

    Attributes
    ----------
    is_sam : ndarray of shape (n_batches,), dtype bool
        Which batches have SAM samples. They are spread evenly over the epoch, at the
        same places in all members that have samples of both kinds.
    widths : ndarray of shape (n_batches,)
        Places that are used in each batch; some of them may have no weight.
    share : ndarray of shape (n_batches, width), dtype float32
        Weight of each place in the loss of its batch; unused places have zero. If there
        is one kind of samples, it is that of a mean over the batch. Otherwise the kinds
        have the weight of their samples in the sum over an epoch.
    """

    def __init__(self, mask, sizes, width=None):
        n_batches, width = sizes.n_batches, width or sizes.width
        if mask.all() or not mask.any():
            self.is_sam = np.full(n_batches, mask.all())
        else:
            steps = np.arange(n_batches + 1) * sizes.n_sam // n_batches
            self.is_sam = np.diff(steps) > 0
        self.samples = {kind: np.flatnonzero(mask == kind) for kind in (True, False)}
        self.widths = np.where(self.is_sam, sizes.sam_width, sizes.normal_width)
        self.share = np.zeros((n_batches, width), dtype=np.float32)
        self.positions = {}  # which of the shuffled samples is at each place
        for kind, samples in self.samples.items():
            own = self.is_sam == kind
            if own.any():
                edges = np.arange(own.sum() + 1) * len(samples) // own.sum()
                counts = np.diff(edges)[:, None]
                places = np.arange(width)
                n_used = min(own.sum(), len(samples))
                weight = len(samples) * n_batches / (len(mask) * n_used)
                self.share[own] = (places < counts) * (weight / np.maximum(counts, 1))
                self.positions[kind] = (edges[:-1, None] + places) % len(samples)

    def epoch(self, rng) -> np.ndarray:
        """Shuffle the samples of each kind; return the sample at each place."""
        rows = np.empty(self.share.shape, dtype=np.int64)
        for kind, positions in self.positions.items():
            rows[self.is_sam == kind] = rng.permutation(self.samples[kind])[positions]
        return rows
