"""Mean and spread of each feature, and whether float32 keeps the spread."""

import warnings

import numpy as np

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["moments", "spread_or_one", "warn_of_rounding"]

BLOCK_NUMBERS = 2**20  # that are worked on in float64 at once
MOST_ROUNDED = 0.01  # of the spread; more is noise that a network may not see through
SHOWN = 10  # columns that a warning names


def moments(X, weight=None):
    """Mean and standard deviation in float64, without a float64 copy of X.

    Parameters
    ----------
    X : ndarray of shape (N, ...)
        Each feature has its own moments; of pictures (N, C, H, W), each channel.
    weight : array-like of shape (N,) or None, default=None
        A weight of two counts a sample twice; those of weight zero leave no trace.

    Returns
    -------
    mean, scale : ndarrays of the shape of a sample, or (C,)

    Examples
    --------
    >>> moments(np.array([[1.0], [3.0], [9.0]]), weight=[1, 1, 0])
    (array([2.]), array([1.]))
    """
    axes = (0, 2, 3) if X.ndim == 4 else (0,)
    if weight is None or not np.any(weight):
        weight = np.ones(len(X))
    weight = np.asarray(weight, dtype=np.float64)
    some = int(np.argmax(weight > 0))
    # Taken off, against cancelling.
    center = X[some : some + 1].mean(axis=axes, keepdims=True, dtype=np.float64)
    first, second = 0.0, 0.0
    for part, own in _blocks(X, weight.reshape(-1, *[1] * (X.ndim - 1))):
        block = part.astype(np.float64) - center
        weighted = block * own
        first = first + weighted.sum(axis=axes)
        second = second + np.multiply(weighted, block, out=weighted).sum(axis=axes)
    total = weight.sum() * (X[0].size // center.size)
    mean = first / total
    variance = np.maximum(second / total - mean**2, 0.0)
    return mean + center.reshape(mean.shape), np.sqrt(variance)


def _blocks(X, weight):
    """Parts of X of a bounded size, with the weights of their samples.

    Some samples, or some lines of a huge picture.
    """
    rows = max(1, BLOCK_NUMBERS // max(1, X[0].size))
    lines = X.shape[2] if X.ndim == 4 else 1
    lines = min(lines, max(1, lines * BLOCK_NUMBERS // max(1, rows * X[0].size)))
    for start in range(0, len(X), rows):
        part, own = X[start : start + rows], weight[start : start + rows]
        if X.ndim == 4:
            for i in range(0, X.shape[2], lines):
                yield part[:, :, i : i + lines], own
        else:
            yield part, own


def _is_constant(mean, scale):
    """Whether what varies is no more than the rounding of the sums."""
    return scale <= np.finfo(np.float64).eps * np.abs(mean)


def spread_or_one(mean, scale):
    """The scale to divide by: one for a feature that does not vary.

    Examples
    --------
    >>> spread_or_one(np.array([5.0, 1e-9]), np.array([0.0, 1e-10]))
    array([1.e+00, 1.e-10])
    """
    # What float32 has no normal number for, a device may take for zero.
    none = _is_constant(mean, scale) | (scale < np.finfo(np.float32).tiny)
    return np.where(none, 1.0, scale)


def warn_of_rounding(X, names=None):
    """Warn if float32, which members compute in, loses what a feature says.

    A spread of one around 1e8 is less than the distance of two neighbours in float32.

    Parameters
    ----------
    X : array-like of shape (N, ...)
        Finite samples as they were given.
    names : array-like of str or None, default=None
        Names of the columns.
    """
    X = np.asarray(X)
    if X.dtype.kind not in "iuf" or np.can_cast(X.dtype, np.float32):
        return
    X = X.reshape(len(X), -1)
    lost = _rounded_away(X)
    if not len(lost):
        return
    columns = [repr(names[i]) if names is not None else str(i) for i in lost[:SHOWN]]
    shown = ", ".join(columns) + ", ..." * (len(lost) > SHOWN)
    warnings.warn(
        f"Members compute in float32, which rounds {len(lost)} column(s) of X by more "
        f"than {MOST_ROUNDED:.0%} of their spread, since they vary so little for where "
        f"they lie: {shown}. Centre and scale X in float64 first, for example with "
        "make_pipeline(StandardScaler(), ...).",
        SharpBalanceWarning,
        stacklevel=2,
    )


def _rounded_away(X):
    """Columns of (N, F) whose rounding error is a large part of their spread."""
    mean, scale = moments(X)
    info = np.finfo(np.float32)
    worst = info.eps / 2 * np.hypot(mean, scale) + float(info.smallest_subnormal)
    doubtful = np.flatnonzero(
        ~_is_constant(mean, scale) & (worst > MOST_ROUNDED * scale)
    )
    lost = []
    for column in doubtful:
        values = X[:, column].astype(np.float64)
        error = values - values.astype(np.float32)
        if np.sqrt(np.square(error).mean()) > MOST_ROUNDED * scale[column]:
            lost.append(int(column))
    return lost
