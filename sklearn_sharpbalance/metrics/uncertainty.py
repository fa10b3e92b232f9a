"""Uncertainty of each sample, and how well confidence ranks errors."""

import numpy as np

from sklearn_sharpbalance.metrics._checks import (
    check_lengths,
    check_member_probas,
    check_proba,
    check_scores,
    encode_labels,
)

__all__ = ["area_under_risk_coverage", "mutual_information", "predictive_entropy"]


def _entropy(proba):
    """Return the entropy over the last axis, in chunks that fit in the cache."""
    flat = proba.reshape(-1, proba.shape[-1])
    tiny = np.finfo(np.float64).tiny
    result = np.empty(len(flat))
    for start in range(0, len(flat), 256):
        p = np.clip(flat[start : start + 256].astype(np.float64), 0, 1)
        logs = np.log(np.maximum(p, tiny))
        result[start : start + 256] = 0.0 - np.einsum("nc,nc->n", p, logs)
    return result.reshape(proba.shape[:-1])


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
    if np.ndim(probas) == 3:
        return _entropy(check_member_probas(probas).mean(axis=0, dtype=np.float64))
    return _entropy(check_proba(probas))


def mutual_information(member_probas):
    r"""Mutual information of prediction and member, for each sample, in nats.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    ndarray of shape (n_samples,)
        From 0 (the members agree; always with one member) to
        ``log(min(n_members, n_classes))``.

    Notes
    -----
    :math:`H(\bar p) - \frac1M \sum_m H(p^m)`: the part of the predictive entropy
    that is due to differences between the members (epistemic). The rest is the mean
    entropy of the members (aleatoric).

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
    total = _entropy(probas.mean(axis=0, dtype=np.float64))  # (N,)
    return np.maximum(total - _entropy(probas).mean(axis=0), 0.0)


def _expected_cumulative_errors(confidence, wrong):
    """Return the errors in the k most confident samples, (N,), mean over ties."""
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
        Ranks the samples, larger = more certain. None uses the probability of the
        predicted class.
    excess : bool, default=False
        Subtract the area of the best possible ranking (E-AURC), so that the result
        depends on the quality of the ranking only.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    float
        In [0, 1], smaller is better; 0.0 if all predictions are right.

    Notes
    -----
    :math:`\frac1N \sum_{k=1}^N \mathrm{err}(\text{the } k \text{ most confident})`.
    For equal confidences it is the mean over all orders, so the order of the samples
    does not matter.

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
    y = encode_labels(
        y_true,
        n_classes=array.shape[1],
        n_samples=len(array),
        labels=labels,
        name="proba",
    )
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
