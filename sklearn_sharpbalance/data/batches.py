"""Batches of fixed shape: the samples in each batch of an epoch.

All batches of a phase have the same number of places for SAM samples and for normal
samples, so that a computation can be captured once and replayed. Unused places are
filled with another sample of the same part and have weight zero, so that every sample
counts exactly once per epoch for any mask.
"""

from dataclasses import dataclass

import numpy as np

__all__ = [
    "BatchLayout",
    "EpochBatches",
    "PartSizes",
    "epoch_batches",
    "part_sizes",
]


@dataclass(frozen=True)
class PartSizes:
    """Shape of every batch of a phase.

    Attributes
    ----------
    n_batches : int
        Batches in an epoch.
    sam, normal : int
        Places for SAM samples and for normal samples in each batch.
    """

    n_batches: int
    sam: int
    normal: int


@dataclass(frozen=True)
class EpochBatches:
    """One epoch of batches; the first ``parts.sam`` columns are the SAM part.

    Attributes
    ----------
    indices : ndarray of shape (n_batches, sam + normal)
        Sample at each place.
    share : ndarray of shape (n_batches, sam + normal), dtype float32
        Weight of each place in the mean over its batch; rows sum to one, unused places
        have zero.
    """

    indices: np.ndarray
    share: np.ndarray

    def padded(self, sizes: PartSizes, wider: PartSizes) -> "EpochBatches":
        """Return the batches of one shape with more places, which have weight zero.

        Examples
        --------
        >>> batches = EpochBatches(np.array([[4, 7]]), np.array([[0.5, 0.5]]))
        >>> sizes = PartSizes(n_batches=1, sam=1, normal=1)
        >>> wider = PartSizes(n_batches=1, sam=2, normal=1)
        >>> batches.padded(sizes, wider)
        EpochBatches(indices=array([[4, 4, 7]]), share=array([[0.5, 0. , 0.5]]))
        """
        if sizes == wider:
            return self
        parts = (
            np.arange(sizes.sam),
            np.full(wider.sam - sizes.sam, -1),
            np.arange(sizes.sam, sizes.sam + sizes.normal),
            np.full(wider.normal - sizes.normal, -1),
        )
        places = np.concatenate(parts)  # -1: a new place, of any sample
        indices = self.indices[:, np.maximum(places, 0)]
        share = np.where(places >= 0, self.share[:, places], 0).astype(self.share.dtype)
        return EpochBatches(indices, share)


def part_sizes(masks, batch_size):
    """Return the shape of the batches for the masks of all members.

    All members have one shape, so that they can run as one stacked computation.

    Parameters
    ----------
    masks : ndarray of shape (M, N), dtype bool
    batch_size : int
        Largest number of samples in a batch. Batches are of nearly equal size: 1347
        samples at 128 are eleven batches of 122 or 123, not ten of 128 and one of 67.

    Returns
    -------
    sizes : PartSizes

    Examples
    --------
    >>> import numpy as np
    >>> part_sizes(np.array([[True] * 3 + [False] * 7]), batch_size=5)
    PartSizes(n_batches=2, sam=2, normal=4)
    """
    n_samples = masks.shape[1]
    n_batches = -(-n_samples // batch_size)
    n_sam = masks.sum(axis=1)  # (M,)
    return PartSizes(
        n_batches,
        sam=_places(n_sam, n_batches),
        normal=_places(n_samples - n_sam, n_batches),
    )


def _places(counts, n_batches):
    """Return the places of a part: at least two, since BatchNorm needs a variance."""
    most = int(counts.max())
    return max(2, -(-most // n_batches)) if most else 0


def epoch_batches(mask, sizes, rng):
    """Assign the samples of one member to the batches of one epoch.

    Parameters
    ----------
    mask : ndarray of shape (N,), dtype bool
        True for the samples of the SAM part.
    sizes : PartSizes
    rng : numpy.random.Generator

    Returns
    -------
    batches : EpochBatches
    """
    return BatchLayout(mask, sizes).epoch(rng)


class BatchLayout:
    """What the batches of all epochs of a phase have in common, for one member."""

    def __init__(self, mask, sizes):
        sam, normal = np.flatnonzero(mask), np.flatnonzero(~mask)
        # Round the edges of one part down and of the other up: a batch with few samples
        # of one part then has more of the other, and no batch is empty.
        sam_edges = np.arange(sizes.n_batches + 1) * len(sam) // sizes.n_batches
        normal_edges = np.arange(sizes.n_batches + 1) * len(normal)
        if len(sam):
            normal_edges = -(-normal_edges // sizes.n_batches)
        else:
            normal_edges = normal_edges // sizes.n_batches
        self.n_samples = len(mask)
        self.parts = [  # samples, and their places after a shuffle
            (sam, _positions(sam_edges, sizes.sam)),
            (normal, _positions(normal_edges, sizes.normal)),
        ]
        is_used = np.concatenate(
            [
                np.arange(sizes.sam) < np.diff(sam_edges)[:, None],
                np.arange(sizes.normal) < np.diff(normal_edges)[:, None],
            ],
            axis=1,
        ).astype(np.float32)
        self.share = is_used / is_used.sum(axis=1, keepdims=True)

    def epoch(self, rng) -> EpochBatches:
        """Shuffle the samples of each part and assign them to the batches."""
        indices = []
        for samples, positions in self.parts:
            if len(samples):
                indices.append(rng.permutation(samples)[positions])
            else:  # the places are for other members
                indices.append(rng.integers(self.n_samples, size=positions.shape))
        return EpochBatches(np.concatenate(indices, axis=1), self.share)


def _positions(edges, n_places):
    """Return which of the shuffled samples of a part is at each place (n_batches, P).

    ``edges`` (n_batches + 1,) are the first sample of each batch, and their number.
    """
    return (edges[:-1, None] + np.arange(n_places)) % max(1, edges[-1])
