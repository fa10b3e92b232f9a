"""Per-sample uncertainty, and how well confidence ranks mistakes."""

import numpy as np
from scipy.special import entr

from sklearn_sharpbalance.metrics._checks import (
    check_lengths,
    check_member_probas,
    check_proba,
    check_scores,
    encode_labels,
)

__all__ = ["area_under_risk_coverage", "mutual_information", "predictive_entropy"]


def _mean_over_members(probas):
    """(N, C) in float64 from one predictor's or all members' probabilities."""
    array = np.asarray(probas)
    if array.ndim == 3:
        return check_member_probas(array).mean(axis=0, dtype=np.float64)
    return check_proba(array).astype(np.float64)


def predictive_entropy(probas):
    r"""Entropy of the predicted distribution of each sample, in nats.

    Parameters
    ----------
    probas : array-like of shape (n_samples, n_classes), or with the members in front
        Probabilities; those of shape (n_members, n_samples, n_classes) are averaged
        over the members first.

    Returns
    -------
    ndarray of shape (n_samples,)
        From 0 to ``log(n_classes)``; larger is less certain.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import predictive_entropy
    >>> predictive_entropy([[1.0, 0.0], [0.5, 0.5]]).round(4)
    array([0.    , 0.6931])
    """
    entropy = entr(np.clip(_mean_over_members(probas), 0, 1)).sum(axis=-1)
    return np.abs(entropy)  # -0.0 becomes 0.0


def mutual_information(member_probas):
    r"""Mutual information of prediction and member, for each sample, in nats.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    ndarray of shape (n_samples,)
        From 0 (the members agree; always so with one member) to
        ``log(min(n_members, n_classes))``.

    Notes
    -----
    :math:`H(\bar p) - \frac1M \sum_m H(p^m)`: the part of the predictive entropy
    that comes from the members' differences (epistemic), the rest being their own
    (aleatoric).

    References
    ----------
    .. [1] S. Depeweg et al., "Decomposition of uncertainty in Bayesian deep learning",
       ICML 2018.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import mutual_information
    >>> mutual_information([[[1.0, 0.0]], [[0.0, 1.0]]]).round(4)
    array([0.6931])
    """
    probas = check_member_probas(member_probas)
    own = np.mean([predictive_entropy(p) for p in probas], axis=0)  # (N,)
    return np.maximum(predictive_entropy(probas) - own, 0.0)


def _expected_cumulative_errors(confidence, wrong):
    """Errors among the k most confident samples, (N,), averaged over orders of ties."""
    order = np.argsort(-confidence, kind="stable")
    values, wrong = confidence[order], wrong[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    sizes = np.diff(np.r_[starts, len(values)])
    means = np.add.reduceat(wrong, starts) / sizes
    return np.repeat(means, sizes).cumsum()


def area_under_risk_coverage(
    y_true, proba, *, confidence=None, excess=False, labels=None
):
    r"""Area under the risk-coverage curve (AURC) of selective prediction.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``proba``; or any labels with ``labels``.
    proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one axis means the second of two classes.
    confidence : array-like of shape (n_samples,), default=None
        What to rank the samples by, larger = more certain. None: the probability of
        the predicted class.
    excess : bool, default=False
        Subtract the area of the best possible ranking (E-AURC), which leaves only
        what the ranking is to blame for.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    float
        In [0, 1], smaller is better; 0.0 where all predictions are right.

    Notes
    -----
    :math:`\frac1N \sum_{k=1}^N \mathrm{err}(\text{the } k \text{ most confident})`.
    For equal confidences it is the mean over their orders, so the order of the
    samples does not matter.

    References
    ----------
    .. [1] Y. Geifman, G. Uziel and R. El-Yaniv, "Bias-reduced uncertainty estimation
       for deep neural classifiers", ICLR 2019.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import area_under_risk_coverage
    >>> area_under_risk_coverage([0, 1], [[0.9, 0.1], [0.6, 0.4]])  # (0 + 1/2) / 2
    0.25
    """
    array = check_proba(proba)
    y = encode_labels(y_true, array.shape[1], len(array), labels, "proba")
    wrong = (array.argmax(axis=1) != y).astype(np.float64)  # (N,)
    if confidence is None:
        ranking = array.max(axis=1)
    else:
        ranking = check_scores(confidence, "confidence")
        check_lengths(len(y), len(ranking), "confidence")
    coverage = np.arange(1, len(y) + 1)
    area = (_expected_cumulative_errors(ranking, wrong) / coverage).mean()
    if excess:
        area -= (np.sort(wrong).cumsum() / coverage).mean()
    return max(float(area), 0.0)
