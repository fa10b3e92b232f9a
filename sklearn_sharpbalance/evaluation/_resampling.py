"""The bootstrap over samples, computed with counts instead of copies of the data.

A draw of N samples with replacement is a row of counts: how often the draw contains
each sample. A metric on the drawn samples is then arithmetic on the counts, for all
draws at once. Methods that share the counts are compared in pairs.
"""

from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "Draws",
    "check_n_bootstrap",
    "interval",
    "weighted_aurc",
    "weighted_auroc",
    "weighted_ece",
]

KeyType = TypeVar("KeyType", bound=Hashable)

# Counts in one block: a block and its temporaries then take some hundred megabytes.
BLOCK = 2**22
# Numbers in one step of a computation, so that its temporaries stay in the cache.
CACHED = 2**17
# Draws with at most this many counts are kept, since every run needs the same ones.
KEEP = 2**23


def check_n_bootstrap(n_bootstrap: Any) -> int:
    """Return the number of draws, or raise if it is not a whole number from 0 on."""
    if not isinstance(n_bootstrap, int | float | np.number) or n_bootstrap < 0:
        raise InvalidInputError(
            f"n_bootstrap must not be negative, got {n_bootstrap!r}. Pass 0 to leave "
            "out the intervals."
        )
    if float(n_bootstrap) % 1 != 0:  # also for NaN and infinity
        raise InvalidInputError(
            f"n_bootstrap must be a whole number, got {n_bootstrap!r}."
        )
    return int(n_bootstrap)


class Draws:
    """Bootstrap draws, the same for every method.

    Parameters
    ----------
    n_draws : int
        Number of draws; 0 draws nothing.
    random_state : int
        Seed of the draws.
    """

    def __init__(self, n_draws: int, random_state: int):
        self.n_draws = n_draws
        self.random_state = random_state
        self._kept: dict[tuple[int, ...], list[np.ndarray]] = {}

    def apply(
        self,
        statistics: Callable[[np.ndarray], dict[KeyType, np.ndarray]],
        n_samples: int,
        *stream: int,
    ) -> dict[KeyType, np.ndarray]:
        """Compute statistics on all samples, then on every draw.

        Parameters
        ----------
        statistics : callable
            ``statistics(counts) -> {key: values}``, with counts of shape
            (B, n_samples) and values of shape (B,).
        n_samples : int
        *stream : int
            Index of the set of samples, as in :meth:`blocks`.

        Returns
        -------
        values : dict of key to ndarray of shape (1 + n_draws,)
            The first entry is the value on all samples.
        """
        every_sample_once = np.ones((1, n_samples))
        blocks = chain([every_sample_once], self.blocks(n_samples, *stream))
        parts = [statistics(counts) for counts in blocks]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def blocks(self, n_samples: int, *stream: int) -> Iterator[np.ndarray]:
        """Yield the counts (B, n_samples) of some draws; every row sums to n_samples.

        Parameters
        ----------
        n_samples : int
        *stream : int
            Index of the set of samples: different sets are drawn independently.
        """
        key = (n_samples, *stream)
        if key in self._kept:
            yield from self._kept[key]
            return
        is_small = self.n_draws * n_samples <= KEEP
        kept = []
        for block in self._make_blocks(n_samples, stream):
            yield block
            if is_small:
                kept.append(block)
        if is_small:
            self._kept[key] = kept

    def _make_blocks(self, n: int, stream: tuple[int, ...]) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([self.random_state, n, *stream])
        n_rows = max(1, BLOCK // n)
        for start in range(0, self.n_draws, n_rows):
            size = min(n_rows, self.n_draws - start)
            places = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
            counts = np.bincount(places.ravel(), minlength=size * n)
            yield counts.reshape(size, n).astype(np.float64)

    def paired_blocks(
        self, n_in: int, n_out: int, *, stream: int, number: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield counts (B, n_in) of known samples with (B, n_out) of foreign ones.

        Parameters
        ----------
        n_in, n_out : int
            Numbers of known and of foreign samples.
        stream : int
            Index of the set of known samples; their counts are those of
            :meth:`blocks`.
        number : int
            Index of the set of foreign samples.
        """
        foreign_blocks = self.blocks(n_out, stream, 1 + number)
        unused = np.empty((0, n_out))
        for known in self.blocks(n_in, stream):
            while len(unused) < len(known):
                unused = np.concatenate([unused, next(foreign_blocks)])
            yield known, unused[: len(known)]
            unused = unused[len(known) :]
        next(foreign_blocks, None)  # run it to the end, where it keeps small sets


def interval(draws: Any, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of draws; NaN without draws.

    The limits are draws themselves: interpolating between infinite draws gives NaN.
    """
    if draws is None or len(draws) == 0:
        return np.nan, np.nan
    tail = round((1 - confidence) / 2, 12)  # 1 - 0.95 is a little more than 0.05
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def weighted_ece(
    counts: np.ndarray, confidence: np.ndarray, right: np.ndarray, n_bins: int = 15
) -> np.ndarray:
    """Return the expected calibration error (B,) of one predictor on drawn samples.

    Parameters
    ----------
    counts : ndarray of shape (B, N)
    confidence, right : ndarray of shape (N,)
        Probability of the predicted class, and whether the prediction is right.
    n_bins : int, default=15
        Number of bins of equal width; each includes its right edge.
    """
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidence)  # (N,)
    gaps = np.zeros((len(bins), n_bins))
    gaps[np.arange(len(bins)), bins] = right - confidence
    return np.abs(counts @ gaps).sum(axis=1) / counts.shape[1]


def weighted_aurc(
    counts: np.ndarray, confidence: np.ndarray, right: np.ndarray
) -> np.ndarray:
    r"""Return the area (B,) under the risk-coverage curve of one predictor.

    Samples of equal confidence, such as the copies of one drawn sample, count as the
    mean over all their orders. With :math:`K` samples and :math:`E` errors before a
    group of :math:`n` equals with error rate :math:`r`, the group's share of the area
    is

    .. math:: \sum_{k=K+1}^{K+n} \frac{E + (k - K) r}{k}
       = (E - K r)(H_{K+n} - H_K) + n r

    with the harmonic numbers :math:`H`.
    """
    order = np.argsort(-confidence, kind="stable")
    starts, N = _group_starts(confidence[order]), len(confidence)
    wrong = (~right[order]).astype(np.float64)
    harmonic = np.r_[0.0, (1 / np.arange(1, N + 1)).cumsum()]
    area = np.empty(len(counts))
    for rows in _row_slices(counts):
        n = counts[rows][:, order]  # (b, N)
        errors, rate = n * wrong, wrong
        if len(starts) < N:
            n = np.add.reduceat(n, starts, axis=1)  # (b, G)
            errors = np.add.reduceat(errors, starts, axis=1)
            rate = errors / np.maximum(n, 1)
        after = n.cumsum(axis=1)
        rise = np.diff(harmonic[after.astype(np.intp)], axis=1, prepend=0)
        excess = errors.cumsum(axis=1) - errors - (after - n) * rate
        area[rows] = np.einsum("bg,bg->b", excess, rise) + errors.sum(axis=1)
    return area / N


def weighted_auroc(
    counts_in: np.ndarray,
    counts_out: np.ndarray,
    scores_in: np.ndarray,
    scores_out: np.ndarray,
) -> np.ndarray:
    """Return the area (B,) under the ROC curve of foreign against known samples.

    Parameters
    ----------
    counts_in, counts_out : ndarrays of shape (B, N_in) and (B, N_out)
    scores_in, scores_out : ndarrays of shape (N_in,) and (N_out,)
        Larger scores mean more out of distribution; equal scores count half.
    """
    order = np.argsort(scores_in)
    # For each foreign sample: how many known ones have a lower score ("left"), and how
    # many a lower or equal one ("right").
    n_lower, n_lower_or_equal = (
        np.searchsorted(scores_in[order], scores_out, side)
        for side in ("left", "right")
    )
    area = np.empty(len(counts_in))
    for rows in _row_slices(counts_in):
        known = counts_in[rows][:, order].cumsum(axis=1)  # (b, N_in)
        known = np.hstack([np.zeros((len(known), 1)), known])
        twice_below = known[:, n_lower] + known[:, n_lower_or_equal]  # (b, N_out)
        area[rows] = np.einsum("bj,bj->b", counts_out[rows], twice_below) / 2
    return area / (counts_in.shape[1] * counts_out.shape[1])


def _row_slices(counts: np.ndarray) -> Iterator[slice]:
    """Return slices of some draws each, so that temporaries stay in the cache."""
    step = max(1, CACHED // counts.shape[1])
    return (slice(i, i + step) for i in range(0, len(counts), step))


def _group_starts(values: np.ndarray) -> np.ndarray:
    """Return the index at which each group of equal sorted values begins."""
    return np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
