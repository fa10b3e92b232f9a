"""The bootstrap over samples, computed with counts instead of copies of the data.

A draw of N samples with replacement is a row of counts: how often the draw contains
each sample. A metric on the drawn samples is then arithmetic on the counts, for all
draws at once. Methods that share the counts are compared in pairs.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

KeyType = TypeVar("KeyType", bound=Hashable)

# Counts in one block: a block and its temporaries then take some hundred megabytes.
BLOCK = 2**22
# Numbers in one step of a computation, so that its temporaries stay in the cache.
CACHED = 2**17


class Draws(NamedTuple):
    """Bootstrap draws, the same for every method."""

    n_draws: int
    random_state: int

    def apply(
        self,
        statistics: Callable[..., dict[KeyType, np.ndarray]],
        *sets: tuple[int, ...],
    ) -> dict[KeyType, np.ndarray]:
        """Compute statistics on all samples, then on every draw: (1 + n_draws,) each.

        ``statistics(*counts)`` takes counts (B, N) of each set of samples, and returns
        values (B,) by key. A set is its number of samples, followed by numbers that
        tell it from other sets: these are drawn independently.
        """
        parts = [statistics(*(np.ones((1, n)) for n, *_ in sets))]
        parts += [statistics(*counts) for counts in self.blocks(*sets)]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def blocks(self, *sets: tuple[int, ...]) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the counts (B, N) of some draws of each set; rows sum to N."""
        n_rows = max(1, BLOCK // max(n for n, *_ in sets))
        generators = [np.random.default_rng([self.random_state, *key]) for key in sets]
        for start in range(0, self.n_draws, n_rows):
            size = min(n_rows, self.n_draws - start)
            yield tuple(_count(rng, size, n) for rng, (n, *_) in zip(generators, sets))


def _count(rng: np.random.Generator, size: int, n: int) -> np.ndarray:
    """Return how often each of ``size`` draws contains each sample, (size, n)."""
    places = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
    counts = np.bincount(places.ravel(), minlength=size * n)
    return counts.reshape(size, n).astype(np.float64)


def interval(draws: Any) -> tuple[float, float]:
    """Return the 95 % percentile interval of draws; NaN without draws.

    The limits are draws themselves: interpolating between infinite draws gives NaN.
    """
    if draws is None or len(draws) == 0:
        return np.nan, np.nan
    low, high = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def weighted_ece(
    counts: np.ndarray, confidence: np.ndarray, right: np.ndarray, n_bins: int = 15
) -> np.ndarray:
    """Return the expected calibration error (B,) of one predictor on drawn samples.

    ``confidence`` (N,) is the probability of the predicted class, ``right`` (N,) says
    whether that class is right. Bins of equal width include their right edge.
    """
    edges = np.linspace(0, 1, n_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidence)  # (N,)
    gaps = np.zeros((len(bins), n_bins))
    gaps[np.arange(len(bins)), bins] = right - confidence
    return np.abs(counts @ gaps).sum(axis=1) / counts.shape[1]


def weighted_auroc(
    counts_in: np.ndarray,
    counts_out: np.ndarray,
    scores_in: np.ndarray,
    scores_out: np.ndarray,
) -> np.ndarray:
    """Return the area (B,) under the ROC curve of other against known samples.

    Counts have shape (B, N), scores (N,). Equal scores count half.
    """
    order = np.argsort(scores_in)
    # For each other sample: how many known ones have a lower score ("left"), and how
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
