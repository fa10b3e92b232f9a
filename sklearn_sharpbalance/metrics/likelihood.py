"""Negative log-likelihood, and the temperature that minimises it."""

from functools import cache

import numpy as np
from scipy.optimize import brentq
from sklearn.model_selection import KFold

from sklearn_sharpbalance._validation import check_choice
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    SUM_TOLERANCE,
    as_float,
    check_outputs,
    check_proba,
    check_weights,
    encode_labels,
    labels_and_proba,
    warn_undefined,
)

BOUNDS = (0.01, 100.0)
AT_A_BOUND = (
    "No temperature minimises the negative log-likelihood: it still falls at the bound "
    "{}, which is returned."
)


def negative_log_likelihood(y_true, proba, *, labels=None, sample_weight=None):
    r"""Mean negative log-probability of the true class, in nats.

    Parameters
    ----------
    y_true, proba, labels, sample_weight
        See :func:`expected_calibration_error`.

    Returns
    -------
    float
        Smaller is better, finite: as in :func:`sklearn.metrics.log_loss`,
        probabilities are clipped at the machine epsilon of their dtype.
    """
    y, array = labels_and_proba(y_true, proba, labels)
    true = array[np.arange(len(y)), y]  # (N,)
    eps = np.finfo(array.dtype).eps
    logs = np.log(np.clip(true.astype(np.float64), eps, 1.0))  # (N,)
    return float(-np.average(logs, weights=check_weights(sample_weight, len(y))))


def _as_logits(values, kind):
    """Return logits with a row maximum of 0, (N, C), from logits or probabilities."""
    check_choice("kind", kind, ("auto", "proba", "logits"))
    array = as_float(values, "proba_or_logits")
    if kind == "proba" or (kind == "auto" and _look_like_probabilities(array)):
        probas = check_proba(array, "proba_or_logits")
        tiny = np.finfo(probas.dtype).tiny
        logits = np.log(np.maximum(probas.astype(np.float64), tiny))
    else:
        logits = check_outputs(array, "proba_or_logits").astype(np.float64)
    return logits - logits.max(axis=1, keepdims=True)


def _look_like_probabilities(array):
    if array.ndim != 2 or not array.size:
        return array.ndim == 1  # the second of two classes; others raise later
    sums = array.sum(axis=-1, dtype=np.float64)
    return bool(
        (array >= -SUM_TOLERANCE).all() and np.abs(sums - 1).max() <= SUM_TOLERANCE
    )


def _labels_and_logits(y_true, proba_or_logits, kind, labels):
    """Return the column of each label (N,), and logits (N, C)."""
    logits = _as_logits(proba_or_logits, kind)
    n_samples, n_classes = logits.shape
    y = encode_labels(y_true, n_classes, n_samples, labels, name="proba_or_logits")
    return y, logits


def _nll(logits, y):
    """Return the mean negative log-likelihood of logits with a row maximum of 0."""
    true = logits[np.arange(len(y)), y]
    return float((np.log(np.exp(logits).sum(axis=1)) - true).mean())


def _slope(beta, logits, y, weight):
    """Return the derivative in ``beta`` of the mean NLL of ``beta * logits``."""
    total = 0.0
    for start in range(0, len(logits), 1024):  # parts that fit in the cache
        part = slice(start, start + 1024)
        z, own = logits[part], y[part]
        powers = np.exp(beta * z)  # (B, C)
        mean = np.einsum("nc,nc->n", powers, z) / powers.sum(axis=1)
        total += (weight[part] * (mean - z[np.arange(len(own)), own])).sum()
    return total / weight.sum()


def _fit(logits, y, weight=None):
    """Return the temperature of least NLL, and the bound that it is at or None.

    The NLL is convex in ``beta = 1 / T``: if its slope does not change its sign between
    the bounds, there is no minimum between them.
    """
    if not logits.any():  # all classes are equal at any temperature
        return 1.0, None
    weight = np.ones(len(y)) if weight is None else weight

    @cache
    def slope(log_temperature):
        return _slope(np.exp(-log_temperature), logits, y, weight)

    low, high = np.log(BOUNDS)
    # The slope rounds to zero if all samples are right with certainty.
    if slope(low) <= 0:
        return BOUNDS[0], BOUNDS[0]
    if slope(high) >= 0:
        return BOUNDS[1], BOUNDS[1]
    return np.exp(brentq(slope, low, high, xtol=1e-11)), None


def fit_temperature(y_true, proba_or_logits, *, kind="auto", labels=None):
    r"""Find the temperature that minimises the negative log-likelihood.

    C. Guo et al., "On calibration of modern neural networks", ICML 2017.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of the predictions; or any labels with ``labels``.
    proba_or_logits : array-like of shape (n_samples, n_classes)
        Probabilities or logits. Both give the same temperature, since the logarithm of
        a softmax is its logits up to a constant. Zero probabilities are replaced by the
        smallest normal number of their dtype.
    kind : {"auto", "proba", "logits"}, default="auto"
        Kind of the predictions; ``"auto"`` assumes probabilities if rows are not
        negative and sum to one.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    float
        ``T``: predict with ``softmax(logits / T)``. Above 1 for an over-confident
        predictor. From 0.01 to 100; if the likelihood increases up to a bound (the
        lower if all samples are right, the upper if they are no better than chance),
        that bound and an ``UndefinedMetricWarning``.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import fit_temperature
    >>> proba = [[0.9, 0.1]] * 4  # three of four are right: it should be 0.75
    >>> round(fit_temperature([0, 0, 0, 1], proba), 6)  # log 9 / log 3
    2.0
    """
    y, logits = _labels_and_logits(y_true, proba_or_logits, kind, labels)
    temperature, bound = _fit(logits, y)
    if bound is not None:
        warn_undefined(AT_A_BOUND.format(bound))
    return float(temperature)


def temperature_or_one(y, logits, weight=None):
    """Return the temperature of a few validation samples, which may determine none.

    No temperature is the best if all samples (N,) are right, or together no better than
    chance. Then return 1 and warn.
    """
    weight = np.ones(len(y)) if weight is None else weight.astype(np.float64)
    y, logits, weight = (values[weight > 0] for values in (y, logits, weight))
    shifted = _as_logits(logits, "logits")
    are_right = (shifted[np.arange(len(y)), y] == 0).all()
    if not are_right and _slope(0.0, shifted, y, weight) < 0:
        temperature, bound = _fit(shifted, y, weight)
        if bound is not None:
            warn_undefined(AT_A_BOUND.format(bound))
        return float(temperature)
    warn_undefined(
        f"The {len(y)} validation samples set no temperature, since all are right or "
        "no better than chance: using 1. Pass a larger validation_fraction."
    )
    return 1.0


def nll_after_temperature(y_true, proba_or_logits, *, cv=2, kind="auto", labels=None):
    """Negative log-likelihood at the best temperature.

    A. Ashukha et al., "Pitfalls of in-domain uncertainty estimation and ensembling
    in deep learning", ICLR 2020 (the calibrated log-likelihood).

    Without it, a comparison of ensembles is mostly one of their temperatures.

    Parameters
    ----------
    y_true, proba_or_logits, kind, labels
        See :func:`fit_temperature`. A temperature at a bound gives no warning.
    cv : int or None, default=2
        Number of shuffled folds: each is scored with the temperature fitted on the
        others (cross-fitting, unbiased). None fits and scores on the same samples,
        which is slightly optimistic, and needs no minimum number of samples.

    Returns
    -------
    float
        In nats, smaller is better.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import nll_after_temperature
    >>> proba = [[0.9, 0.1]] * 4
    >>> round(nll_after_temperature([0, 0, 0, 1], proba, cv=None), 4)  # entropy of 3/4
    0.5623
    """
    y, logits = _labels_and_logits(y_true, proba_or_logits, kind, labels)
    if cv is None:
        return _nll(logits / _fit(logits, y)[0], y)
    if int(cv) != cv or not 2 <= cv <= len(y):
        raise InvalidInputError(
            f"cv must be None or an integer from 2 to the {len(y)} samples, got {cv!r}."
        )
    folds = KFold(int(cv), shuffle=True, random_state=0)
    total = 0.0
    for train, test in folds.split(logits):
        temperature = _fit(logits[train], y[train])[0]
        total += len(test) * _nll(logits[test] / temperature, y[test])
    return total / len(y)
