"""How often the members of an ensemble predict different classes.

All functions are symmetric in the members. With a single member there is no pair to
compare: the result is that of two identical members, with a warning.
"""

import numpy as np

from sklearn_sharpbalance.metrics._checks import (
    check_member_probas,
    encode_labels,
    top1,
    warn_undefined,
)
from sklearn_sharpbalance.metrics._pairs import mean_over_pairs, warn_single

__all__ = [
    "disagreement",
    "disagreement_error_ratio",
    "pairwise_disagreement",
    "unique_predictions",
]


def _disagreement_of(predictions):
    """Return the share of samples on which members differ, (M, M), from (M, N)."""
    return np.stack([(predictions != row).mean(axis=1) for row in predictions])


def pairwise_disagreement(member_probas):
    """Share of samples on which each pair of members predicts different classes.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    ndarray of shape (n_members, n_members)
        Symmetric, with zeros on the diagonal.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import pairwise_disagreement
    >>> pairwise_disagreement([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]])
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    return _disagreement_of(top1(check_member_probas(member_probas)))


def disagreement(member_probas):
    r"""Mean share of samples on which two members predict different classes.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    float
        In [0, 1]. With one member 0.0, and an ``UndefinedMetricWarning``.

    Notes
    -----
    .. math:: \frac{2}{M(M-1)} \sum_{i<j} \frac1N \sum_n
        [\arg\max p_i(x_n) \ne \arg\max p_j(x_n)]

    If a member's highest probabilities are equal, it predicts the first such class.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import disagreement
    >>> disagreement([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]])
    0.5
    """
    predictions = top1(check_member_probas(member_probas))  # (M, N)
    if len(predictions) == 1:
        warn_single("disagreement", 0.0)
        return 0.0
    return mean_over_pairs(_disagreement_of(predictions))


def disagreement_error_ratio(y_true, member_probas, *, labels=None):
    r"""Disagreement of the members divided by their mean error (DER).

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``member_probas``; or any labels with ``labels``.
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    float
        Not negative; 1 means that two members disagree as often as one is wrong. If
        all members are always right (0 / 0), and with one member, 0.0 and an
        ``UndefinedMetricWarning``.

    Notes
    -----
    :math:`\mathrm{DER} = \mathbb E[\mathrm{Dis}(f, f')] / \mathbb E[\mathrm{Err}(f)]`.
    A class missing from ``y_true`` changes nothing.

    References
    ----------
    .. [1] R. Theisen et al., "When are ensembles really effective?", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import disagreement_error_ratio
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> disagreement_error_ratio([0, 0], probas)  # 0.5 / mean of 0 and 0.5
    2.0
    """
    probas = check_member_probas(member_probas)
    M, N, C = probas.shape
    y = encode_labels(y_true, n_classes=C, n_samples=N, labels=labels)
    predictions = top1(probas)  # (M, N)
    if M == 1:
        warn_single("disagreement_error_ratio", 0.0)
        return 0.0
    error = (predictions != y).mean()
    if error == 0:
        warn_undefined(
            "disagreement_error_ratio divides by the members' mean error, which is "
            "zero; returning 0.0."
        )
        return 0.0
    return float(mean_over_pairs(_disagreement_of(predictions)) / error)


def unique_predictions(member_probas, *, per_sample=False):
    """Number of different classes that the members predict for a sample.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    per_sample : bool, default=False
        Return the number for each sample instead of the mean.

    Returns
    -------
    float or ndarray of shape (n_samples,)
        From 1 (always with one member) to ``min(n_members, n_classes)``.

    References
    ----------
    .. [1] A. Rubinstein et al., "Scalable ensemble diversification for OOD
       generalization and detection", 2024.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import unique_predictions
    >>> unique_predictions([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]])
    1.5
    """
    predictions = np.sort(top1(check_member_probas(member_probas)), axis=0)  # (M, N)
    counts = 1 + (predictions[1:] != predictions[:-1]).sum(axis=0)  # (N,)
    return counts if per_sample else float(counts.mean())
