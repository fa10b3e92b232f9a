"""Mixed batches of one shape: which samples stand in which batch of an epoch.

Every batch of a phase holds the same number of places for SAM samples and for
normal ones, so that a computation can be captured once and replayed. Places that
an epoch does not need are filled with another sample of the same part and weigh
nothing. So every sample counts exactly once an epoch, whatever the masks.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["EpochBatches", "PartSizes", "epoch_batches", "part_sizes"]


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
        Sample in each place.
    share : ndarray of shape (n_batches, sam + normal), dtype float32
        Weight of each place in the mean over its batch; rows sum to one, places
        that only fill up have zero.
    """

    indices: np.ndarray
    share: np.ndarray


def part_sizes(masks, batch_size):
    """Shape of the batches for the masks of all members together.

    One shape for all members lets them run as one stacked computation.

    Parameters
    ----------
    masks : ndarray of shape (M, N), dtype bool
    batch_size : int
        Upper limit of the samples in a batch. They are spread evenly: 1347
        samples at 128 make eleven batches of 122 or 123, not ten and a rest.

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
    """Places a part needs in each batch: at least two, for BatchNorm's variance."""
    most = int(counts.max())
    return max(2, -(-most // n_batches)) if most else 0


def epoch_batches(mask, sizes, rng):
    """Deal the samples of one member to the batches of one epoch.

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
    starts = _starts(mask.sum(), sizes.n_batches)  # of the SAM part
    others = _starts((~mask).sum(), sizes.n_batches, late=mask.any())
    parts = [
        _deal(np.flatnonzero(part), first, places, rng, len(mask))
        for part, first, places in (
            (mask, starts, sizes.sam),
            (~mask, others, sizes.normal),
        )
    ]
    indices = np.concatenate([indices for indices, _ in parts], axis=1)
    counts = np.concatenate([real for _, real in parts], axis=1).astype(np.float32)
    return EpochBatches(indices, counts / counts.sum(axis=1, keepdims=True))


def _starts(n_samples, n_batches, late=False):
    """First sample of each batch, and the end: (n_batches + 1,).

    Of two parts one is rounded down and one up. So the batches that are short of the
    one are not short of the other as well, and none is empty.
    """
    edges = np.arange(n_batches + 1) * n_samples
    return -(-edges // n_batches) if late else edges // n_batches


def _deal(samples, first, places, rng, n_all):
    """Spread shuffled samples over batches as evenly as can be."""
    n_batches = len(first) - 1
    if len(samples) == 0:
        # The part has places because another member uses them: fill, weigh nothing.
        fill = rng.integers(n_all, size=(n_batches, places))
        return fill, np.zeros((n_batches, places), dtype=bool)
    samples = rng.permutation(samples)
    place = np.arange(places)
    indices = samples[(first[:-1, None] + place) % len(samples)]
    return indices, place < np.diff(first)[:, None]
