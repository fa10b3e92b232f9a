"""Similarity of the features of two networks: centred kernel alignment."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import as_float, warn_undefined

__all__ = ["linear_cka"]


def _features(values, name):
    """Return the features as a float64 matrix (N, P)."""
    array = as_float(values, name).astype(np.float64, copy=False)
    if array.ndim < 2 or 0 in array.shape:
        raise InvalidInputError(
            f"{name} must have shape (n_samples, n_features), got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{name} contains infinite values or NaN.")
    return array.reshape(len(array), -1)


def _centred(features):
    """Return centred features, divided by the largest, which changes no similarity.

    A constant feature is set to exactly 0, so that it does not vary by rounding.
    """
    largest = np.abs(features).max()
    features = features / largest if largest > 0 else features
    centred = features - features.mean(axis=0)
    centred[:, np.ptp(features, axis=0) == 0] = 0.0
    return centred


def _biased_hsic(a, b):
    """Return the squared Frobenius norm of ``a.T @ b``, by the cheaper product."""
    if len(a) < a.shape[1] * b.shape[1] / (a.shape[1] + b.shape[1]):
        return float(np.sum((a @ a.T) * (b @ b.T)))
    return float(np.square(a.T @ b).sum())


def _unbiased_hsic(a, b):
    """Return Song et al.'s estimator times n (n - 3), by Gram matrices."""
    k, m = a @ a.T, b @ b.T  # (N, N)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n = len(k)
    k_rows, m_rows = k.sum(axis=0), m.sum(axis=0)  # (N,)
    trace = np.sum(k * m)
    product = k_rows.sum() * m_rows.sum() / ((n - 1) * (n - 2))
    terms = np.array([trace, product, -2 * (k_rows @ m_rows) / (n - 2)])
    # For samples of equal distances the sum is only rounding errors.
    rounding = 1e-12 * np.abs(terms).sum()
    return float(terms.sum()) if abs(terms.sum()) > rounding else 0.0


def linear_cka(features_a, features_b, *, debiased=False):
    r"""Linear centred kernel alignment of two sets of features.

    Parameters
    ----------
    features_a : array-like of shape (n_samples, ...)
        Features of one network; more axes than two are flattened.
    features_b : array-like of shape (n_samples, ...)
        Features of the other network for the same samples.
    debiased : bool, default=False
        Use the unbiased estimator of the kernels' dependence. The biased one is close
        to 1 for any two networks if there are fewer samples than features.

    Returns
    -------
    float
        In [0, 1]; 1 for features that are equal up to rotation, scale and shift. With
        ``debiased`` it may be slightly below 0. If one set of features is constant over
        the samples or, with ``debiased``, all samples have the same distance, 0.0 and
        an ``UndefinedMetricWarning``.

    Notes
    -----
    On centred features,
    :math:`\|A^\top B\|_F^2 / (\|A^\top A\|_F \|B^\top B\|_F)`. Needs 2 samples, and
    4 if debiased.

    References
    ----------
    .. [1] S. Kornblith et al., "Similarity of neural network representations
       revisited", ICML 2019.
    .. [2] T. Nguyen, M. Raghu and S. Kornblith, "Do wide and deep networks learn the
       same things?", ICLR 2021.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import linear_cka
    >>> a = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
    >>> round(linear_cka(a, [[0.0, 3.0], [-3.0, 0.0], [3.0, -3.0]]), 12)  # rotated
    1.0
    """
    a, b = _features(features_a, "features_a"), _features(features_b, "features_b")
    needed = 4 if debiased else 2
    if len(a) != len(b) or len(a) < needed:
        raise InvalidInputError(
            f"linear_cka needs at least {needed} samples, the same in both, got "
            f"{len(a)} and {len(b)}."
        )
    a, b = _centred(a), _centred(b)
    hsic = _unbiased_hsic if debiased else _biased_hsic
    scale = hsic(a, a) * hsic(b, b)
    if not a.any() or not b.any() or scale <= 0:
        warn_undefined(
            "linear_cka is undefined for features that are constant over the samples "
            "or, with debiased=True, if all samples have the same distance; returning "
            "0.0."
        )
        return 0.0
    return hsic(a, b) / float(np.sqrt(scale))
