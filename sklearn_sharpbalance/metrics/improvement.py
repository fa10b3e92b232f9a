"""Improvement of an ensemble over its members."""

from typing import NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import (
    BETWEEN_0_AND_1,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    check_member_probas,
    check_proba,
    encode_labels,
    top1,
    warn_undefined,
)

__all__ = ["LossDecomposition", "ensemble_improvement_rate", "loss_decomposition"]

SMALLEST_PROBA = 1e-30  # so that logarithms are finite, also in float32


def ensemble_improvement_rate(
    y_true,
    member_probas,
    *,
    aggregation="mean_logit",
    ensemble_proba=None,
    labels=None,
):
    r"""Share of the members' mean error that the ensemble removes (EIR).

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``member_probas``; or any labels with ``labels``.
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    aggregation : {"mean_logit", "mean_proba"}, default="mean_logit"
        How the ensemble predicts: by the mean of the members' log-probabilities, as
        ensembles of this package do by default, or by that of their probabilities.
    ensemble_proba : array-like of shape (n_samples, n_classes), default=None
        Prediction of an ensemble with any other aggregation, such as
        ``estimator.predict_proba(X)``; it is used in place of ``aggregation``.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    float
        At most 1; 0 with one member. If all members are always right, 0.0 if the
        ensemble is too, else ``-inf``, with an ``UndefinedMetricWarning``.

    Notes
    -----
    :math:`\mathrm{EIR} = (\mathbb E[\mathrm{Err}(f)] - \mathrm{Err}_{\mathrm{ens}})
    / \mathbb E[\mathrm{Err}(f)]`.

    References
    ----------
    .. [1] R. Theisen et al., "When are ensembles really effective?", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import ensemble_improvement_rate
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> ensemble_improvement_rate([0, 1], probas)  # errors 0.5 and 0; ensemble 0
    1.0
    """
    check_choice("aggregation", aggregation, ["mean_logit", "mean_proba"])
    probas = check_member_probas(member_probas)
    _, N, C = probas.shape
    y = encode_labels(y_true, n_classes=C, n_samples=N, labels=labels)
    if ensemble_proba is None and aggregation == "mean_logit":
        logs = np.log(np.maximum(probas, SMALLEST_PROBA))
        combined = logs.mean(axis=0, dtype=np.float64)  # (N, C)
    elif ensemble_proba is None:
        combined = probas.mean(axis=0, dtype=np.float64)  # (N, C)
    else:
        combined = check_proba(ensemble_proba, "ensemble_proba")
        if combined.shape != (N, C):
            raise InvalidInputError(
                f"ensemble_proba must have shape {(N, C)} like the members, got "
                f"{combined.shape}."
            )
    member_error = (top1(probas) != y).mean()
    ensemble_error = (combined.argmax(axis=-1) != y).mean()
    if member_error == 0:
        value = 0.0 if ensemble_error == 0 else -np.inf
        warn_undefined(
            "ensemble_improvement_rate divides by the members' mean error, which is "
            f"zero; returning {value}."
        )
        return value
    return float((member_error - ensemble_error) / member_error)


class LossDecomposition(NamedTuple):
    """Terms of ``ensemble_loss = member_loss - ambiguity``, means over samples.

    Attributes
    ----------
    ensemble_loss : float
        Loss of the aggregated prediction.
    member_loss : float
        Mean loss of the members.
    ambiguity : float
        Difference between the members, in units of the loss: the ensemble's gain.
    """

    ensemble_loss: float
    member_loss: float
    ambiguity: float


def _nll_mean_logit(probas, y):
    """Terms of the normalised geometric mean; the gap is -log of its normalisation."""
    logs = np.log(probas)  # (M, N, C)
    mean_log = logs.mean(axis=0)  # (N, C)
    top = mean_log.max(axis=1)
    log_norm = top + np.log(np.exp(mean_log - top[:, None]).sum(axis=1))  # (N,)
    rows = np.arange(len(y))
    return log_norm - mean_log[rows, y], -logs[:, rows, y].mean(axis=0), -log_norm


def _nll_mean_proba(probas, y):
    """Terms of the arithmetic mean; the gap is Jensen's, at the true class."""
    true = probas[:, np.arange(len(y)), y]  # (M, N)
    ensemble, member = -np.log(true.mean(axis=0)), -np.log(true).mean(axis=0)
    return ensemble, member, np.log(true.mean(axis=0) / true).mean(axis=0)


def _squared_error(probas, y):
    """Terms of the squared error to one-hot targets; the gap is the variance."""
    mean = probas.mean(axis=0)  # (N, C)
    target = np.eye(probas.shape[2])[y]  # (N, C)
    ensemble = np.square(mean - target).sum(axis=1)
    member = np.square(probas - target).sum(axis=2).mean(axis=0)
    return ensemble, member, np.square(probas - mean).sum(axis=2).mean(axis=0)


_DECOMPOSITIONS = {
    "nll": _nll_mean_logit,
    "nll_mean_proba": _nll_mean_proba,
    "squared_error": _squared_error,
}


def loss_decomposition(y_true, member_probas, *, loss="nll", eps=1e-12, labels=None):
    r"""Split the ensemble's loss into the members' loss minus their ambiguity.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Class codes, the columns of ``member_probas``; or any labels with ``labels``.
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    loss : {"nll", "nll_mean_proba", "squared_error"}, default="nll"
        Loss and ensemble: the negative log-likelihood of the mean logit, that of the
        mean probability, or the multi-class Brier score of the mean probability.
    eps : float, default=1e-12
        Lower bound of the probabilities, so that the logarithms are finite. Rows are
        normalised again before anything is computed.
    labels : array-like of shape (n_classes,), default=None
        Label of each column, such as ``estimator.classes_``.

    Returns
    -------
    LossDecomposition
        Floats ``ensemble_loss``, ``member_loss`` and ``ambiguity``, the last not
        negative, and zero (within rounding) for one member or equal members.

    Notes
    -----
    The identity is exact for each sample:

    * ``"nll"``: with :math:`\bar q_c \propto \exp(\frac1M \sum_m \log p_c^m)` the
      ambiguity is :math:`-\log \sum_c \exp(\frac1M \sum_m \log p_c^m) =
      \frac1M \sum_m KL(\bar q \| p^m)`. It needs no label.
    * ``"nll_mean_proba"``: :math:`\frac1M \sum_m \log(\bar p_y / p_y^m)`.
    * ``"squared_error"``: :math:`\frac1M \sum_m \sum_c (p_c^m - \bar p_c)^2`, which is
      ``variance_diversity`` times :math:`(M-1)/M`.

    References
    ----------
    .. [1] A. Krogh and J. Vedelsby, "Neural network ensembles, cross validation, and
       active learning", NeurIPS 1994.
    .. [2] D. Wood et al., "A unified theory of diversity in ensemble learning", JMLR
       24, 2023.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import loss_decomposition
    >>> parts = loss_decomposition([0], [[[0.8, 0.2]], [[0.2, 0.8]]], loss="nll")
    >>> [round(value, 4) for value in parts]  # log 2 = 0.9163 - 0.2231
    [0.6931, 0.9163, 0.2231]
    """
    check_choice("loss", loss, _DECOMPOSITIONS)
    check_numbers(BETWEEN_0_AND_1, eps=eps)
    probas = check_member_probas(member_probas)
    y = encode_labels(
        y_true, n_classes=probas.shape[2], n_samples=probas.shape[1], labels=labels
    )
    total = np.zeros(3)
    for start in range(0, len(y), 1024):  # limits the size of the float64 copies
        rows = slice(start, start + 1024)
        p = np.maximum(probas[:, rows].astype(np.float64), eps)  # (M, B, C)
        p /= p.sum(axis=2, keepdims=True)
        total += [part.sum() for part in _DECOMPOSITIONS[loss](p, y[rows])]
    return LossDecomposition(*(float(value) for value in total / len(y)))
