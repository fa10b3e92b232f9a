"""How much the members' predictions differ, and what an ensemble gains by it.

All functions are symmetric in the members. With a single member there is no pair to
compare: the result is that of two identical members, with a warning.
"""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    check_member_outputs,
    check_member_probas,
    check_proba,
    labels_and_members,
    warn_undefined,
)

# Lower bounds of probabilities, so that logarithms and divergences are finite.
SMALLEST_PROBA = 1e-30
SMALLEST_OF_KL = 1e-12
# Samples processed at a time, so that the float64 copies fit in the cache.
CHUNK = 512


def _by_sample(function, outputs):
    """Return ``function`` of float64 copies (M, B, C) of a few samples each, (N,)."""
    starts = range(0, outputs.shape[1], CHUNK)
    parts = (outputs[:, start : start + CHUNK] for start in starts)
    return np.concatenate([function(part.astype(np.float64)) for part in parts])


def sample_disagreement(predictions: np.ndarray) -> np.ndarray:
    """Return the fraction of pairs of members that differ, (N,), from (M, N)."""
    M = len(predictions)
    n_differing = sum(
        (predictions[m + 1 :] != predictions[m]).sum(axis=0) for m in range(M)
    )
    return n_differing / max(M * (M - 1) / 2, 1)


def sample_variance(outputs: np.ndarray) -> np.ndarray:
    """Return the members' variance, summed over classes, (N,)."""
    return _by_sample(lambda part: part.var(axis=0, ddof=1).sum(axis=-1), outputs)


def sample_kl(probas: np.ndarray) -> np.ndarray:
    """Return the mean divergence over ordered pairs of members, (N,)."""

    def of_part(p):  # (M, B, C)
        M = len(p)
        logs = np.log(np.maximum(p, SMALLEST_OF_KL))
        same = np.einsum("mnc,mnc->n", p, logs)  # sum over pairs with i = j
        every = np.einsum("nc,nc->n", p.sum(axis=0), logs.sum(axis=0))  # over i, j
        # Rounding may give -1e-17 for equal members.
        return np.maximum(M * same - every, 0.0) / (M * (M - 1))

    return _by_sample(of_part, probas)


def _of_one_member(metric: str) -> float:
    """Return 0.0, and warn at the caller of the metric that it has no pair."""
    warn_undefined(
        f"{metric} compares pairs of members, but member_probas has one member; "
        "returning 0, as for two identical members.",
        depth=2,
    )
    return 0.0


def disagreement(member_probas):
    r"""Mean fraction of samples on which two members predict different classes.

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
    """
    predictions = check_member_probas(member_probas).argmax(axis=-1)  # (M, N)
    if len(predictions) == 1:
        return _of_one_member("disagreement")
    return float(sample_disagreement(predictions).mean())


def disagreement_error_ratio(y_true, member_probas, *, labels=None):
    r"""Disagreement of the members divided by their mean error (DER).

    R. Theisen et al., "When are ensembles really effective?", NeurIPS 2023.

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

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import disagreement_error_ratio
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> disagreement_error_ratio([0, 0], probas)  # 0.5 / mean of 0 and 0.5
    2.0
    """
    y, probas = labels_and_members(y_true, member_probas, labels)
    predictions = probas.argmax(axis=-1)  # (M, N)
    if len(predictions) == 1:
        return _of_one_member("disagreement_error_ratio")
    error = (predictions != y).mean()
    if error == 0:
        warn_undefined(
            "disagreement_error_ratio divides by the members' mean error, which is "
            "zero; returning 0.0."
        )
        return 0.0
    return float(sample_disagreement(predictions).mean() / error)


def unique_predictions(member_probas, *, per_sample=False):
    """Number of different classes that the members predict for a sample.

    A. Rubinstein et al., "Scalable ensemble diversification for OOD generalization
    and detection", 2024.

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
    """
    predictions = check_member_probas(member_probas).argmax(axis=-1)  # (M, N)
    predictions.sort(axis=0)
    counts = 1 + (predictions[1:] != predictions[:-1]).sum(axis=0)  # (N,)
    return counts if per_sample else float(counts.mean())


def variance_diversity(member_probas):
    r"""Variance of the members' outputs, summed over classes, averaged over samples.

    L. A. Ortega, R. Cabañas and A. Masegosa, "Diversity and generalization in
    neural network ensembles", AISTATS 2022.

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

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import variance_diversity
    >>> round(variance_diversity([[[1.0, 0.0]], [[0.6, 0.4]]]), 12)  # 2 * 0.4^2 / 2
    0.16
    """
    outputs = check_member_outputs(member_probas)
    if len(outputs) == 1:
        return _of_one_member("variance_diversity")
    return float(sample_variance(outputs).mean())


def kl_diversity(member_probas):
    r"""Mean Kullback-Leibler divergence over ordered pairs of members and samples.

    S. Fort, H. Hu and B. Lakshminarayanan, "Deep ensembles: a loss landscape
    perspective", 2019.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    float
        In nats, not negative. At most 27.6, since probabilities below 1e-12 count as
        1e-12 in the logarithm. With one member 0.0, and an ``UndefinedMetricWarning``.

    Notes
    -----
    .. math:: \frac{1}{M(M-1)} \sum_{i \ne j} \frac1N \sum_n
        \sum_c p_c^i(x_n) \log\frac{p_c^i(x_n)}{p_c^j(x_n)}

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import kl_diversity
    >>> round(kl_diversity([[[0.5, 0.5]], [[0.25, 0.75]]]), 4)  # log(3) / 8
    0.1373
    """
    probas = check_member_probas(member_probas)
    if len(probas) == 1:
        return _of_one_member("kl_diversity")
    return float(sample_kl(probas).mean())


def ensemble_improvement_rate(
    y_true, member_probas, *, ensemble_proba=None, labels=None
):
    r"""Fraction of the members' mean error that the ensemble removes (EIR).

    R. Theisen et al., "When are ensembles really effective?", NeurIPS 2023.

    Parameters
    ----------
    y_true, member_probas, labels
        See :func:`disagreement_error_ratio`.
    ensemble_proba : array-like of shape (n_samples, n_classes), default=None
        Prediction of the ensemble, such as ``estimator.predict_proba(X)``. None
        predicts by the mean of the members' log-probabilities.

    Returns
    -------
    float
        At most 1; 0 with one member. If all members are always right, 0.0 if the
        ensemble is too, else ``-inf``, with an ``UndefinedMetricWarning``.

    Notes
    -----
    :math:`\mathrm{EIR} = (\mathbb E[\mathrm{Err}(f)] - \mathrm{Err}_{\mathrm{ens}})
    / \mathbb E[\mathrm{Err}(f)]`.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import ensemble_improvement_rate
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> ensemble_improvement_rate([0, 1], probas)  # errors 0.5 and 0; ensemble 0
    1.0
    """
    y, probas = labels_and_members(y_true, member_probas, labels)
    if ensemble_proba is None:
        logs = np.log(np.maximum(probas, SMALLEST_PROBA))
        combined = logs.mean(axis=0, dtype=np.float64)  # (N, C)
    else:
        combined = check_proba(ensemble_proba, "ensemble_proba")
        if combined.shape != probas.shape[1:]:
            raise InvalidInputError(
                f"ensemble_proba must have shape {probas.shape[1:]} like the members, "
                f"got {combined.shape}."
            )
    member_error = (probas.argmax(axis=-1) != y).mean()
    ensemble_error = (combined.argmax(axis=-1) != y).mean()
    if member_error == 0:
        value = 0.0 if ensemble_error == 0 else -np.inf
        warn_undefined(
            "ensemble_improvement_rate divides by the members' mean error, which is "
            f"zero; returning {value}."
        )
        return value
    return float((member_error - ensemble_error) / member_error)
