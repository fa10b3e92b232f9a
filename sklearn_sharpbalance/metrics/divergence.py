"""Distances between the members' predicted distributions.

All functions are symmetric in the members, or return both directions. With a single
member there is no pair to compare: the result is that of two identical members, with a
warning.
"""

import numpy as np

from sklearn_sharpbalance._validation import BETWEEN_0_AND_1, check_numbers
from sklearn_sharpbalance.metrics._checks import (
    check_member_outputs,
    check_member_probas,
)
from sklearn_sharpbalance.metrics._pairs import mean_over_pairs, warn_single

__all__ = ["kl_diversity", "pairwise_kl", "variance_diversity"]

# Samples processed at a time, so that the float64 copies fit in the cache.
CHUNK = 512


def _chunks(outputs):
    """Yield float64 copies (M, B * C) of a few samples, and an array for a result.

    Both are views of two buffers that all chunks share: new memory for each chunk would
    cost as much as the arithmetic.
    """
    M, N, C = outputs.shape
    values = np.empty((M, min(CHUNK, N) * C))
    result = np.empty_like(values)
    for start in range(0, N, CHUNK):
        rows = outputs[:, start : start + CHUNK].reshape(M, -1)
        size = rows.shape[1]
        values[:, :size] = rows
        yield values[:, :size], result[:, :size]


def variance_diversity(member_probas):
    r"""Variance of the members' outputs, summed over classes, averaged over samples.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member, or any finite outputs such as logits.

    Returns
    -------
    float
        Not negative, and at most 1 on probabilities. With one member 0.0, and an
        ``UndefinedMetricWarning``.

    Notes
    -----
    .. math:: \frac1N \sum_n \sum_c \frac{1}{M-1} \sum_m
        \bigl(p_c^m(x_n) - \bar p_c(x_n)\bigr)^2

    References
    ----------
    .. [1] L. A. Ortega, R. Cabañas and A. Masegosa, "Diversity and generalization
       in neural network ensembles", AISTATS 2022.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import variance_diversity
    >>> round(variance_diversity([[[1.0, 0.0]], [[0.6, 0.4]]]), 12)  # 2 * 0.4^2 / 2
    0.16
    """
    outputs = check_member_outputs(member_probas)
    M, N, _ = outputs.shape
    if M == 1:
        warn_single("variance_diversity", 0.0)
        return 0.0
    total = 0.0
    for chunk, gaps in _chunks(outputs):  # (M, B * C)
        np.subtract(chunk, chunk.mean(axis=0), out=gaps)
        total += np.einsum("mk,mk->", gaps, gaps)
    return float(total / (N * (M - 1)))


def pairwise_kl(member_probas, *, eps=1e-12):
    r"""Kullback-Leibler divergence of each ordered pair of members.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    eps : float, default=1e-12
        Lower bound of the probabilities inside the logarithm, so that the divergence
        from a member with a probability of zero is large but finite.

    Returns
    -------
    ndarray of shape (n_members, n_members)
        Entry (i, j) is the mean over samples of :math:`KL(p_i \| p_j)`, in nats; not
        negative, with zeros on the diagonal.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import pairwise_kl
    >>> pairwise_kl([[[0.5, 0.5]], [[0.25, 0.75]]]).round(4)
    array([[0.    , 0.1438],
           [0.1308, 0.    ]])
    """
    check_numbers(BETWEEN_0_AND_1, eps=eps)
    probas = check_member_probas(member_probas)
    cross = np.zeros((len(probas), len(probas)))
    for p, logs in _chunks(probas):  # (M, B * C)
        np.log(np.maximum(p, eps, out=logs), out=logs)
        cross += p @ logs.T  # (M, M): sum of p_i log p_j
    kl = (np.diag(cross)[:, None] - cross) / probas.shape[1]
    return np.maximum(kl, 0.0)  # rounding may give -1e-17 for equal members


def kl_diversity(member_probas, *, eps=1e-12):
    r"""Mean Kullback-Leibler divergence over ordered pairs of members and samples.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    eps : float, default=1e-12
        Lower bound of the probabilities inside the logarithm.

    Returns
    -------
    float
        In nats, not negative and finite: at most ``log(1 / eps)``. With one member
        0.0, and an ``UndefinedMetricWarning``.

    Notes
    -----
    .. math:: \frac{1}{M(M-1)} \sum_{i \ne j} \frac1N \sum_n
        \sum_c p_c^i(x_n) \log\frac{p_c^i(x_n)}{p_c^j(x_n)}

    References
    ----------
    .. [1] S. Fort, H. Hu and B. Lakshminarayanan, "Deep ensembles: a loss landscape
       perspective", 2019.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import kl_diversity
    >>> round(kl_diversity([[[0.5, 0.5]], [[0.25, 0.75]]]), 4)  # log(3) / 8
    0.1373
    """
    matrix = pairwise_kl(member_probas, eps=eps)
    if len(matrix) == 1:
        warn_single("kl_diversity", 0.0)
        return 0.0
    return mean_over_pairs(matrix)
