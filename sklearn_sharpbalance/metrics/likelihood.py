"""Proper scores of predicted probabilities, and the deep ensemble equivalent."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    check_proba,
    check_scores,
    check_weights,
    encode_labels,
    warn_undefined,
)

__all__ = ["brier_score", "deep_ensemble_equivalent", "negative_log_likelihood"]


def negative_log_likelihood(y_true, proba, *, labels=None, sample_weight=None):
    r"""Mean negative log-probability of the true class, in nats.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``proba``; or any labels with ``labels``.
    proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one axis means the second of two classes.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample, not negative.

    Returns
    -------
    float
        Smaller is better, finite: as in :func:`sklearn.metrics.log_loss`,
        probabilities are clipped at the machine epsilon of their dtype.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import negative_log_likelihood
    >>> round(negative_log_likelihood([0, 1], [[0.5, 0.5], [0.75, 0.25]]), 4)
    1.0397
    """
    array = check_proba(proba)
    y = encode_labels(
        y_true,
        n_classes=array.shape[1],
        n_samples=len(array),
        labels=labels,
        name="proba",
    )
    true = array[np.arange(len(y)), y]  # (N,)
    eps = np.finfo(array.dtype).eps
    logs = np.log(np.clip(true.astype(np.float64), eps, 1.0))  # (N,)
    return float(-np.average(logs, weights=check_weights(sample_weight, len(y))))


def brier_score(
    y_true, proba, *, scale_by_half="auto", labels=None, sample_weight=None
):
    r"""Mean squared distance of the probabilities from the one-hot truth.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``proba``; or any labels with ``labels``.
    proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one axis means the second of two classes.
    scale_by_half : bool or "auto", default="auto"
        Halve the sum over classes, so that it is in [0, 1] instead of [0, 2].
        ``"auto"`` halves it for two classes, as scikit-learn does.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample, not negative.

    Returns
    -------
    float
        Smaller is better; the same number as
        :func:`sklearn.metrics.brier_score_loss`.

    Notes
    -----
    :math:`\frac1N \sum_n \sum_c (p_c(x_n) - [y_n = c])^2 =
    \frac1N \sum_n (\|p(x_n)\|^2 - 2 p_{y_n}(x_n) + 1)`.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import brier_score
    >>> brier_score([0, 1], [[0.5, 0.5], [0.75, 0.25]])
    0.40625
    """
    if scale_by_half not in (True, False, "auto"):
        raise InvalidInputError(
            f"scale_by_half must be True, False or 'auto', got {scale_by_half!r}."
        )
    array = check_proba(proba)
    y = encode_labels(
        y_true,
        n_classes=array.shape[1],
        n_samples=len(array),
        labels=labels,
        name="proba",
    )
    true = array[np.arange(len(y)), y].astype(np.float64)  # (N,)
    norms = np.einsum("nc,nc->n", array, array, dtype=np.float64)  # (N,)
    weights = check_weights(sample_weight, len(y))
    value = float(np.average(norms - 2 * true + 1, weights=weights))
    if scale_by_half == "auto":
        scale_by_half = array.shape[1] == 2
    if scale_by_half:
        value /= 2
    return max(value, 0.0)


def deep_ensemble_equivalent(nll, reference_nlls):
    r"""Number of plain members whose ensemble has the same negative log-likelihood.

    Parameters
    ----------
    nll : float
        Negative log-likelihood of the ensemble, preferably at its best temperature
        (:func:`nll_after_temperature`).
    reference_nlls : array-like of shape (n_sizes,)
        Negative log-likelihood of plain deep ensembles of 1, 2, ... members, on the
        same data.

    Returns
    -------
    float
        From 1 to ``n_sizes``, linear between sizes. An ``nll`` above that of one
        plain member gives 1.0, one below every reference gives ``n_sizes`` (a lower
        bound), both with an ``UndefinedMetricWarning``.

    Notes
    -----
    The smallest :math:`l` at which the interpolated reference reaches ``nll``. If the
    reference rises by chance, its lowest value so far is used.

    References
    ----------
    .. [1] A. Ashukha et al., "Pitfalls of in-domain uncertainty estimation and
       ensembling in deep learning", ICLR 2020.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import deep_ensemble_equivalent
    >>> deep_ensemble_equivalent(0.75, [1.0, 0.5, 0.25])
    1.5
    """
    reference = check_scores(reference_nlls, "reference_nlls").astype(np.float64)
    if not np.isfinite(nll):
        raise InvalidInputError(f"nll must be a finite number, got {nll!r}.")
    reference = np.minimum.accumulate(reference)
    if nll > reference[0]:
        warn_undefined(
            f"The NLL {nll:.6g} is above that of one plain member "
            f"({reference[0]:.6g}); returning 1.0."
        )
        return 1.0
    if nll < reference[-1]:
        warn_undefined(
            f"The NLL {nll:.6g} is below that of {len(reference)} plain members "
            f"({reference[-1]:.6g}); returning {len(reference)}, a lower bound."
        )
        return float(len(reference))
    reached = int(np.argmax(reference <= nll))  # first size that is as good
    if reached == 0:
        return 1.0
    above, below = reference[reached - 1], reference[reached]
    return float(reached + (above - nll) / (above - below))
