"""Calibration: does a predictor's confidence match its accuracy?"""

from typing import NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.metrics._checks import (
    check_weights,
    labels_and_proba,
    warn_undefined,
)


class CalibrationBins(NamedTuple):
    """Bins of a reliability diagram; empty bins have count 0 and values 0.0."""

    counts: np.ndarray  # (n_bins,), number of samples
    confidence: np.ndarray  # (n_bins,), mean confidence
    accuracy: np.ndarray  # (n_bins,), fraction of correct predictions
    edges: np.ndarray  # (n_bins + 1,)


def _bins(confidence, right, n_bins, strategy, weight=None):
    """Return the bins; a bin includes its right edge, as in Guo et al."""
    edges = np.linspace(0, 1, n_bins + 1)
    if strategy == "quantile":
        edges = np.quantile(confidence, edges)
    index = np.searchsorted(edges[1:-1], confidence)  # (N,)
    counts = np.bincount(index, weight, n_bins)
    divisor = np.where(counts > 0, counts, 1)
    if weight is not None:
        confidence, right = confidence * weight, right * weight
    mean_confidence = np.bincount(index, confidence, n_bins) / divisor
    accuracy = np.bincount(index, right, n_bins) / divisor
    return CalibrationBins(counts, mean_confidence, accuracy, edges)


def _check_options(n_bins, strategy):
    check_numbers(POSITIVE_INTEGER, n_bins=n_bins)
    check_choice("strategy", strategy, ("uniform", "quantile"))


def _of_predicted_class(y, proba):
    """Return the confidence of the predicted class, (N,), and if it is right, (N,)."""
    predicted = proba.argmax(axis=1)  # (N,)
    return proba[np.arange(len(y)), predicted].astype(np.float64), predicted == y


def _of_each_class(y, proba):
    """Yield the probability of each class, (N,), and if it is the true one, (N,)."""
    for c, column in enumerate(proba.T):
        yield np.ascontiguousarray(column, dtype=np.float64), y == c


def calibration_curve_bins(
    y_true, proba, *, n_bins=15, strategy="uniform", labels=None
):
    """Bins of a reliability diagram: counts, mean confidence, accuracy.

    Parameters
    ----------
    y_true, proba, n_bins, strategy, labels
        See :func:`expected_calibration_error`.

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
    y, array = labels_and_proba(y_true, proba, labels)
    confidence, right = _of_predicted_class(y, array)
    return _bins(confidence, right, n_bins, strategy)


def expected_calibration_error(
    y_true,
    proba,
    *,
    n_bins=15,
    strategy="uniform",
    classwise=False,
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
    :math:`\sum_b \frac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|`.

    References
    ----------
    .. [1] C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    .. [2] M. Kull et al., "Beyond temperature scaling", NeurIPS 2019 (class-wise).

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import expected_calibration_error
    >>> proba = [[0.5, 0.5]] * 20 + [[0.75, 0.25]] * 20
    >>> expected_calibration_error([0] * 40, proba)  # gaps of 0.5 and 0.25
    0.375
    """
    _check_options(n_bins, strategy)
    y, array = labels_and_proba(y_true, proba, labels)
    pairs = _of_each_class(y, array) if classwise else [_of_predicted_class(y, array)]
    weight = check_weights(sample_weight, len(y))
    bins = [_bins(conf, right, n_bins, strategy, weight) for conf, right in pairs]
    errors = [
        np.average(np.abs(b.accuracy - b.confidence), weights=b.counts) for b in bins
    ]
    if len(y) < n_bins:
        warn_undefined(
            f"expected_calibration_error has {len(y)} samples for {n_bins} bins, "
            "too few for a meaningful value; lower n_bins."
        )
    return float(np.mean(errors))
