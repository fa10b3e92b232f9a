"""Diversity of the members' errors: which members are wrong on the same samples."""

import numpy as np

from sklearn_sharpbalance.metrics._checks import (
    check_member_probas,
    encode_labels,
    top1,
    warn_undefined,
)
from sklearn_sharpbalance.metrics._pairs import mean_over_pairs

__all__ = ["double_fault", "q_statistic"]


def _faults(y_true, member_probas, labels):
    """Return 1.0 where a member is wrong on a sample, else 0.0; (M, N)."""
    probas = check_member_probas(member_probas)
    y = encode_labels(
        y_true, n_classes=probas.shape[2], n_samples=probas.shape[1], labels=labels
    )
    return (top1(probas) != y).astype(np.float64)


def double_fault(y_true, member_probas, *, labels=None):
    r"""Mean share of samples that two members both get wrong.

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
        In [0, 1], smaller is more diverse. With one member its error rate, as for two
        identical members, and an ``UndefinedMetricWarning``.

    References
    ----------
    .. [1] G. Giacinto and F. Roli, "Design of effective neural network ensembles for
       image classification purposes", Image and Vision Computing, 2001.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import double_fault
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> double_fault([1, 1], probas)
    0.5
    """
    wrong = _faults(y_true, member_probas, labels)
    M, N = wrong.shape
    if M == 1:
        warn_undefined(
            "double_fault compares pairs of members, but member_probas has one "
            "member; returning its error."
        )
        return float(wrong.mean())
    both = wrong @ wrong.T / N  # (M, M)
    return mean_over_pairs(both)


def q_statistic(y_true, member_probas, *, labels=None):
    r"""Yule's Q of the members' correctness, averaged over pairs.

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
        In [-1, 1]: 0 for independent errors, 1 for members that are right on the same
        samples, -1 for members that are right on different ones. A pair whose value is
        undefined (both products below are zero, for example if a member is always
        right) is left out of the mean; if there is no other pair, 1.0 as for identical
        members. Both cases, and a single member, give an ``UndefinedMetricWarning``.

    Notes
    -----
    With the numbers of samples on which both are right (:math:`N^{11}`), both are wrong
    (:math:`N^{00}`) and only one is right (:math:`N^{10}, N^{01}`),

    .. math:: Q = \frac{N^{11} N^{00} - N^{01} N^{10}}{N^{11} N^{00} + N^{01} N^{10}}

    References
    ----------
    .. [1] L. I. Kuncheva and C. J. Whitaker, "Measures of diversity in classifier
       ensembles", Machine Learning 51, 2003.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import q_statistic
    >>> a = [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]
    >>> b = [[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.1, 0.9]]
    >>> q_statistic([0, 0, 0, 0], [a, b])  # (1 * 1 - 1 * 1) / 2
    0.0
    """
    wrong = _faults(y_true, member_probas, labels)
    right = 1 - wrong
    agree = (right @ right.T) * (wrong @ wrong.T)  # (M, M): N11 * N00
    differ = (right @ wrong.T) * (wrong @ right.T)  # (M, M): N10 * N01
    pairs = np.triu_indices(len(wrong), k=1)
    numerator, denominator = (agree - differ)[pairs], (agree + differ)[pairs]
    defined = denominator > 0
    if not defined.any():
        warn_undefined(
            "q_statistic is undefined for every pair of members (a single member, or "
            "members that are right or wrong on all samples); returning 1.0."
        )
        return 1.0
    if not defined.all():
        warn_undefined(
            f"q_statistic is undefined for {np.sum(~defined)} of {len(defined)} pairs "
            "of members; they are left out of the mean."
        )
    return float((numerator[defined] / denominator[defined]).mean())
