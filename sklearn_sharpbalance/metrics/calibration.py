"""Calibration: does a predictor's confidence match its accuracy?"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    check_proba,
    check_weights,
    encode_labels,
    warn_undefined,
)

__all__ = ["CalibrationBins", "calibration_curve_bins", "expected_calibration_error"]


class CalibrationBins(NamedTuple):
    """Bins of a reliability diagram; empty bins have count 0 and values 0.0.

    Attributes
    ----------
    counts : ndarray of shape (n_bins,)
        Number of samples in each bin.
    confidence : ndarray of shape (n_bins,)
        Mean confidence of each bin.
    accuracy : ndarray of shape (n_bins,)
        Share of correct predictions in each bin.
    edges : ndarray of shape (n_bins + 1,)
        Edges of the bins.
    """

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    edges: np.ndarray


def _edges(confidence, n_bins, strategy):
    """Return the edges of the bins; a bin includes its right edge, as in Guo et al."""
    shares = np.linspace(0, 1, n_bins + 1)
    return shares if strategy == "uniform" else np.quantile(confidence, shares)


def _bins(confidence, right, n_bins, strategy, weight=None):
    """Return counts, mean confidence and accuracy of the bins."""
    edges = _edges(confidence, n_bins, strategy)
    index = np.searchsorted(edges[1:-1], confidence)  # (N,)
    counts = np.bincount(index, weight, n_bins)
    divisor = np.where(counts > 0, counts, 1)
    if weight is not None:
        confidence, right = confidence * weight, right * weight
    mean_confidence = np.bincount(index, confidence, n_bins) / divisor
    accuracy = np.bincount(index, right, n_bins) / divisor
    return CalibrationBins(counts, mean_confidence, accuracy, edges)


def _folded_normal_excess(gap, std):
    """Return ``E|Z| - |gap|`` for Z ~ N(gap, std^2), the bias of ``|gap|`` by noise."""
    safe = np.where(std > 0, std, 1.0)
    ratio = gap / safe
    mean = safe * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (
        2 * ndtr(ratio) - 1
    )
    return np.where(std > 0, mean - np.abs(gap), 0.0)


def _error_of_bins(bins, norm, debiased):
    """Return the calibration error of one set of bins."""
    weight = bins.counts / bins.counts.sum()
    gap = bins.accuracy - bins.confidence
    if norm == "max":
        return np.abs(gap).max()
    variance = bins.accuracy * (1 - bins.accuracy)
    if norm == "l1":
        value = np.abs(gap)
        if debiased:
            std = np.sqrt(variance / np.maximum(bins.counts, 1))
            value = value - _folded_normal_excess(gap, std)
        return max(float(weight @ value), 0.0)
    value = gap**2
    if debiased:
        value = value - variance / np.maximum(bins.counts - 1, 1)
    return float(np.sqrt(max(float(weight @ value), 0.0)))


def _check_options(n_bins, strategy, norm="l1", debiased=False):
    check_numbers(POSITIVE_INTEGER, n_bins=n_bins)
    check_choice("strategy", strategy, ("uniform", "quantile"))
    check_choice("norm", norm, ("l1", "l2", "max"))
    if norm == "max" and debiased:
        raise InvalidInputError("norm='max' has no debiased form: use 'l1' or 'l2'.")


def _top1_confidence(y_true, proba, labels):
    """Return the confidence of the predicted class, (N,), and if it is right, (N,)."""
    array = check_proba(proba)
    y = encode_labels(
        y_true,
        n_classes=array.shape[1],
        n_samples=len(array),
        labels=labels,
        name="proba",
    )
    predicted = array.argmax(axis=1)  # (N,)
    return array[np.arange(len(y)), predicted].astype(np.float64), predicted == y


def calibration_curve_bins(
    y_true, proba, *, n_bins=15, strategy="uniform", labels=None
):
    """Bins of a reliability diagram: counts, mean confidence, accuracy.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``proba``; or any labels with ``labels``.
    proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one axis means the second of two classes.
    n_bins : int, default=15
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], or with equally many samples.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    CalibrationBins
        Arrays ``counts``, ``confidence``, ``accuracy`` of shape (n_bins,), 0 where a
        bin is empty (plot those with ``counts > 0``), and ``edges``.

    Notes
    -----
    A bin includes its right edge. Samples of equal confidence are in the same bin, so
    quantile bins may differ in size or be empty.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import calibration_curve_bins
    >>> bins = calibration_curve_bins([0, 1], [[0.9, 0.1], [0.7, 0.3]], n_bins=2)
    >>> bins.counts, bins.accuracy
    (array([0, 2]), array([0. , 0.5]))
    """
    _check_options(n_bins, strategy)
    confidence, right = _top1_confidence(y_true, proba, labels)
    return _bins(confidence, right, n_bins, strategy)


def expected_calibration_error(
    y_true,
    proba,
    *,
    n_bins=15,
    strategy="uniform",
    classwise=False,
    debiased=False,
    norm="l1",
    labels=None,
    sample_weight=None,
):
    r"""Expected calibration error (ECE).

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``proba``; or any labels with ``labels``.
    proba : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one axis means the second of two classes.
    n_bins : int, default=15
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], or with equally many samples.
    classwise : bool, default=False
        Compare the probability of every class with its frequency and average over
        classes, instead of using the predicted class only.
    debiased : bool, default=False
        Subtract an estimate of the bias that is due to the finite number of samples in
        each bin. The result is clipped at 0.
    norm : {"l1", "l2", "max"}, default="l1"
        Mean gap, root mean squared gap, or the largest gap (MCE).
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample, not negative. The edges of the bins do not depend on the
        weights.

    Returns
    -------
    float
        In [0, 1], smaller is better. With ``classwise``, a class missing in ``y_true``
        has the frequency 0. With fewer samples than bins the value has little meaning
        and an ``UndefinedMetricWarning`` is given.

    Notes
    -----
    :math:`\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|`. With ``"l1"`` the
    bias of each bin is that of a folded normal with variance
    :math:`\mathrm{acc}_b(1-\mathrm{acc}_b)/n_b`; with ``"l2"`` the unbiased estimate
    :math:`\mathrm{acc}_b(1-\mathrm{acc}_b)/(n_b-1)` is subtracted from the squared gap.

    References
    ----------
    .. [1] C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    .. [2] A. Kumar, P. Liang and T. Ma, "Verified uncertainty calibration", NeurIPS
       2019.
    .. [3] M. Kull et al., "Beyond temperature scaling", NeurIPS 2019 (class-wise).

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import expected_calibration_error
    >>> proba = [[0.5, 0.5]] * 20 + [[0.75, 0.25]] * 20
    >>> expected_calibration_error([0] * 40, proba)  # gaps of 0.5 and 0.25
    0.375
    """
    _check_options(n_bins, strategy, norm, debiased)
    if debiased and sample_weight is not None:
        raise InvalidInputError(
            "debiased=True does not support sample_weight. Pass only one of them."
        )
    if classwise:
        array = check_proba(proba)
        y = encode_labels(
            y_true,
            n_classes=array.shape[1],
            n_samples=len(array),
            labels=labels,
            name="proba",
        )
        pairs: Iterable[tuple[np.ndarray, np.ndarray]] = (
            (np.ascontiguousarray(column, dtype=np.float64), y == c)
            for c, column in enumerate(array.T)
        )
    else:
        pairs = [_top1_confidence(y_true, proba, labels)]
    n_samples = len(y_true)
    weight = check_weights(sample_weight, n_samples)
    bins = [_bins(conf, right, n_bins, strategy, weight) for conf, right in pairs]
    if n_samples < n_bins:
        warn_undefined(
            f"expected_calibration_error has {n_samples} samples for {n_bins} bins, "
            "too few for a meaningful value; lower n_bins."
        )
    return float(np.mean([_error_of_bins(b, norm, debiased) for b in bins]))
