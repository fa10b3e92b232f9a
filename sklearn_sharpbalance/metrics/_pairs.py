"""Helpers of the metrics that compare pairs of members."""

import numpy as np

from sklearn_sharpbalance.metrics._checks import warn_undefined

__all__ = ["mean_over_pairs", "warn_single"]


def mean_over_pairs(matrix: np.ndarray) -> float:
    """Return the mean off the diagonal of an (M, M) matrix; M is at least 2."""
    M = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (M * (M - 1)))


def warn_single(metric: str, value: float) -> None:
    """Warn at the caller of the metric that there is only one member."""
    warn_undefined(
        f"{metric} compares pairs of members, but member_probas has one member; "
        f"returning {value:.6g}, as for two identical members.",
        depth=2,
    )
