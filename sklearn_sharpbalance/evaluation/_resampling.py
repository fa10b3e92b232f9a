"""The bootstrap over samples, as sums with counts instead of copies of the data.

A draw of N samples with replacement is a row of counts: how often it holds each
sample. What a metric would be on the drawn samples is then arithmetic on the counts,
for all draws at once, and methods that share the counts are compared in pairs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "Draws",
    "interval",
    "weighted_aurc",
    "weighted_auroc",
    "weighted_ece",
    "weighted_means",
]

# Counts made at once: a block and its temporaries then take some hundred megabytes.
BLOCK = 2**22
# Numbers worked on at once.
CACHED = 2**17
# Draws of a set that small are kept, since every run asks for the same ones.
KEEP = 2**23


class Draws:
    """Bootstrap draws, the same for every method.

    Parameters
    ----------
    n_draws : int
        0 draws nothing.
    random_state : int
    """

    def __init__(self, n_draws: Any, random_state: int):
        if not isinstance(n_draws, int | float | np.number) or n_draws < 0:
            raise InvalidInputError(
                f"n_bootstrap must not be negative, got {n_draws!r}. 0 leaves the "
                "intervals out."
            )
        if float(n_draws) % 1 != 0:  # nor NaN or infinity
            raise InvalidInputError(
                f"n_bootstrap must be a whole number, got {n_draws!r}."
            )
        self.n_draws, self.seed = int(n_draws), random_state
        self._kept: dict[tuple[int, ...], list[np.ndarray]] = {}

    def blocks(self, n: int, *stream: int) -> Iterator[np.ndarray]:
        """Yield counts (B, n) of some draws at a time; every row sums to n.

        Parameters
        ----------
        n : int
            Number of samples.
        *stream : int
            Which set of samples it is: sets are drawn independently.
        """
        key = (n, *stream)
        if key in self._kept:
            yield from self._kept[key]
            return
        small = self.n_draws * n <= KEEP
        kept = []
        for block in self._make(n, stream):
            yield block
            if small:
                kept.append(block)
        if small:
            self._kept[key] = kept

    def _make(self, n: int, stream: tuple[int, ...]) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([self.seed, n, *stream])
        rows = max(1, BLOCK // n)
        for start in range(0, self.n_draws, rows):
            size = min(rows, self.n_draws - start)
            places = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
            counts = np.bincount(places.ravel(), minlength=size * n)
            yield counts.reshape(size, n).astype(np.float64)

    def paired_blocks(
        self, n_in: int, n_out: int, stream: int, number: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield counts (B, n_in) as of :meth:`blocks`, and (B, n_out) of another set.

        Parameters
        ----------
        n_in, n_out : int
        stream : int
            Which set the first one is.
        number : int
            Which foreign set the second one is.
        """
        queue = self.blocks(n_out, stream, 1 + number)
        waiting = np.empty((0, n_out))
        for known in self.blocks(n_in, stream):
            while len(waiting) < len(known):
                waiting = np.concatenate([waiting, next(queue)])
            yield known, waiting[: len(known)]
            waiting = waiting[len(known) :]
        next(queue, None)  # to its end, where small sets are kept

    def means(self, values: np.ndarray, *stream: int) -> np.ndarray:
        """Means (n_draws, K) over the drawn samples of K values a sample, (N, K)."""
        blocks = self.blocks(len(values), *stream)
        parts = [weighted_means(counts, values) for counts in blocks]
        return np.concatenate(parts) if parts else np.empty((0, values.shape[1]))


def interval(draws: Any, confidence: float) -> tuple[float, float]:
    """Percentile interval; NaN without draws.

    The quantiles are draws themselves: interpolation would make NaN of infinities.
    """
    if draws is None or len(draws) == 0:
        return np.nan, np.nan
    tail = round((1 - confidence) / 2, 12)  # 1 - 0.95 is a little more than 0.05
    low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def weighted_means(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means (B, K) of values (N, K) under counts (B, N)."""
    return counts @ values / counts.shape[1]


def weighted_ece(
    counts: np.ndarray, confidence: np.ndarray, right: np.ndarray, n_bins: int = 15
) -> np.ndarray:
    """Expected calibration error, (B,), of one predictor on the drawn samples.

    Parameters
    ----------
    counts : ndarray of shape (B, N)
    confidence, right : ndarray of shape (N,)
    n_bins : int, default=15
        Of equal width, holding their right edge.
    """
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidence)  # (N,)
    gaps = np.zeros((len(bins), n_bins))
    gaps[np.arange(len(bins)), bins] = right - confidence
    return np.abs(counts @ gaps).sum(axis=1) / counts.shape[1]


def weighted_aurc(
    counts: np.ndarray, confidence: np.ndarray, right: np.ndarray
) -> np.ndarray:
    r"""Area under the risk-coverage curve, (B,), of one predictor.

    Equal confidences, and so the copies of one drawn sample, count as the mean over
    their orders. With :math:`K` samples and :math:`E` errors before a group of
    :math:`n` equals with error rate :math:`r`, the group's share of the area is

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
    """Area under the ROC curve, (B,), of telling foreign samples from known ones.

    Parameters
    ----------
    counts_in, counts_out : ndarrays of shape (B, N_in) and (B, N_out)
    scores_in, scores_out : ndarrays of shape (N_in,) and (N_out,)
        Larger = more out of distribution; equal scores count half.
    """
    order = np.argsort(scores_in)
    # Known samples with a lower score than a foreign one, and with a lower or equal.
    sides = [
        np.searchsorted(scores_in[order], scores_out, side)
        for side in ("left", "right")
    ]
    area = np.empty(len(counts_in))
    for rows in _row_slices(counts_in):
        known = counts_in[rows][:, order].cumsum(axis=1)  # (b, N_in)
        known = np.hstack([np.zeros((len(known), 1)), known])
        below, upto = (known[:, side] for side in sides)  # (b, N_out)
        area[rows] = np.einsum("bj,bj->b", counts_out[rows], below + upto) / 2
    return area / (counts_in.shape[1] * counts_out.shape[1])


def _row_slices(counts: np.ndarray) -> Iterator[slice]:
    """Some draws at a time: the temporaries then stay in the cache."""
    step = max(1, CACHED // counts.shape[1])
    return (slice(i, i + step) for i in range(0, len(counts), step))


def _group_starts(values: np.ndarray) -> np.ndarray:
    """Where each group of equal sorted values begins."""
    return np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
