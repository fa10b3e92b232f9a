"""Similarity of what two networks compute inside: centred kernel alignment."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import as_float, warn_undefined

__all__ = ["linear_cka"]


def _features(values, name):
    """Features as a float64 (N, P) matrix."""
    array = as_float(values, name).astype(np.float64, copy=False)
    if array.ndim < 2 or 0 in array.shape:
        raise InvalidInputError(
            f"{name} must have shape (n_samples, n_features), got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{name} holds infinite values or NaN.")
    return array.reshape(len(array), -1)


def _centred(features):
    """Centred features whose largest entry is one, which changes no similarity.

    Rounding of the mean must not make features vary that do not.
    """
    largest = np.abs(features).max()
    features = features / largest if largest > 0 else features
    centred = features - features.mean(axis=0)
    centred[:, np.ptp(features, axis=0) == 0] = 0.0
    return centred


def _biased_hsic(a, b):
    """Squared Frobenius norm of ``a.T @ b``, by the cheaper of two products."""
    if len(a) < a.shape[1] * b.shape[1] / (a.shape[1] + b.shape[1]):
        return float(np.sum((a @ a.T) * (b @ b.T)))
    return float(np.square(a.T @ b).sum())


def _unbiased_hsic(a, b):
    """Song et al.'s estimator, times n (n - 3), from Gram matrices without diagonal."""
    k, m = a @ a.T, b @ b.T  # (N, N)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n = len(k)
    k_rows, m_rows = k.sum(axis=0), m.sum(axis=0)  # (N,)
    trace = np.sum(k * m)
    product = k_rows.sum() * m_rows.sum() / ((n - 1) * (n - 2))
    terms = np.array([trace, product, -2 * (k_rows @ m_rows) / (n - 2)])
    # Samples that are equally far apart leave nothing but rounding errors.
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
        Use the unbiased estimator of the kernels' dependence. The plain one nears 1
        for any two networks when there are fewer samples than features.

    Returns
    -------
    float
        In [0, 1]; 1 for features equal up to rotation, scale and shift. The debiased
        one may be a little below 0. If one set of features is constant over the
        samples or, debiased, has them equally far apart, 0.0 and an
        ``UndefinedMetricWarning``.

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
            "linear_cka is undefined for features that do not vary over the samples, "
            "or, debiased, have them all equally far apart; returning 0.0."
        )
        return 0.0
    return hsic(a, b) / float(np.sqrt(scale))
