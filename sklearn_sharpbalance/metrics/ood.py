"""Scores that separate out-of-distribution samples from in-distribution samples.

``bma_score`` and ``msp_score`` keep the direction of their papers (larger = more in
distribution). In the table ``OOD_SCORES`` larger always means more out of distribution,
as :func:`ood_auroc` expects.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score

from sklearn_sharpbalance._validation import POSITIVE, Interval, Real, check_numbers
from sklearn_sharpbalance.metrics._checks import (
    check_member_outputs,
    check_member_probas,
    check_outputs,
    check_proba,
    check_scores,
)
from sklearn_sharpbalance.metrics.diversity import unique_predictions
from sklearn_sharpbalance.metrics.uncertainty import (
    mutual_information,
    predictive_entropy,
)

__all__ = [
    "LOGIT_SCORES",
    "OOD_SCORES",
    "bma_score",
    "energy_score",
    "msp_score",
    "ood_auroc",
    "ood_false_positive_rate",
    "predictive_diversity_score",
]


def bma_score(member_probas):
    r"""Highest class probability of the members' mean; larger = more in distribution.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    ndarray of shape (n_samples,)
        :math:`\max_c \frac1M \sum_m p_c^m(x)`, from ``1 / n_classes`` to 1.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import bma_score
    >>> bma_score([[[0.75, 0.25]], [[0.25, 0.75]]])
    array([0.5])
    """
    probas = check_member_probas(member_probas)
    return probas.mean(axis=0, dtype=np.float64).max(axis=-1)


def msp_score(proba):
    """Maximum softmax probability (MSP); larger = more in distribution.

    Parameters
    ----------
    proba : array-like of shape (n_samples, n_classes), or with the members in front
        Probabilities. For shape (n_members, n_samples, n_classes) the score is the
        mean of the members' maxima, whereas :func:`bma_score` is the maximum of their
        mean.

    Returns
    -------
    ndarray of shape (n_samples,)
        From ``1 / n_classes`` to 1.

    References
    ----------
    .. [1] D. Hendrycks and K. Gimpel, "A baseline for detecting misclassified and
       out-of-distribution examples in neural networks", ICLR 2017.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import msp_score
    >>> msp_score([[0.75, 0.25]])
    array([0.75])
    """
    if np.ndim(proba) == 3:
        maxima = check_member_probas(proba, "proba").max(axis=-1)  # (M, N)
        return maxima.mean(axis=0, dtype=np.float64)
    return check_proba(proba).max(axis=-1)


def predictive_diversity_score(member_probas):
    r"""Predictive diversity score (PDS); larger = more out of distribution.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.

    Returns
    -------
    ndarray of shape (n_samples,)
        :math:`\frac1C \sum_c \max_m p_c^m(x)`, from :math:`1/C` (always with one
        member) to :math:`\min(M, C)/C`. For one-hot predictions it is the number of
        unique predictions divided by :math:`C`.

    References
    ----------
    .. [1] A. Rubinstein et al., "Scalable ensemble diversification for OOD
       generalization and detection", 2024.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import predictive_diversity_score
    >>> predictive_diversity_score([[[0.75, 0.25]], [[0.25, 0.75]]])
    array([0.75])
    """
    probas = check_member_probas(member_probas)
    return probas.max(axis=0).mean(axis=-1, dtype=np.float64)


def energy_score(logits, *, temperature=1.0):
    r"""Free energy of the logits; larger = more out of distribution.

    Parameters
    ----------
    logits : array-like of shape (n_samples, n_classes), or with the members in front
        Unnormalised outputs; those of shape (n_members, n_samples, n_classes) are
        averaged over the members first. Probabilities cannot be used, because a
        softmax removes the scale that the energy measures.
    temperature : float, default=1.0
        ``T`` below.

    Returns
    -------
    ndarray of shape (n_samples,)
        :math:`-T \log \sum_c \exp(f_c(x)/T)`.

    References
    ----------
    .. [1] W. Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import energy_score
    >>> energy_score([[0.0, 0.0], [2.0, 2.0]]).round(4)
    array([-0.6931, -2.6931])
    """
    check_numbers(POSITIVE, temperature=temperature)
    if np.ndim(logits) == 3:
        mean = check_member_outputs(logits, "logits").mean(axis=0, dtype=np.float64)
    else:
        mean = check_outputs(logits).astype(np.float64)  # (N, C)
    return -temperature * logsumexp(mean / temperature, axis=-1)


def _negated(score: Callable) -> Callable:
    def negated(values):
        return -score(values)

    negated.__name__ = f"negated_{score.__name__}"
    negated.__doc__ = f"``-{score.__name__}(...)``: larger = more out of distribution."
    return negated


def _unique_per_sample(member_probas):
    """Number of unique predictions; larger = more out of distribution."""
    return unique_predictions(member_probas, per_sample=True)


#: Per-sample scores by name, larger = more out of distribution. Each takes the
#: members' outputs, (n_members, n_samples, n_classes): probabilities, except for
#: those in ``LOGIT_SCORES``, which take logits. For one predictor pass ``proba[None]``.
OOD_SCORES: dict[str, Callable] = {
    "bma": _negated(bma_score),
    "msp": _negated(msp_score),
    "pds": predictive_diversity_score,
    "entropy": predictive_entropy,
    "mutual_information": mutual_information,
    "unique": _unique_per_sample,
    "energy": energy_score,
}

#: Names in ``OOD_SCORES`` that need logits instead of probabilities.
LOGIT_SCORES = frozenset({"energy"})


def _in_and_out(scores_in, scores_out):
    return check_scores(scores_in, "scores_in"), check_scores(scores_out, "scores_out")


def ood_auroc(scores_in, scores_out):
    """Area under the ROC curve of the detection of foreign samples.

    Parameters
    ----------
    scores_in : array-like of shape (n_in,)
        Scores of samples of the training distribution; larger = more out of it.
    scores_out : array-like of shape (n_out,)
        Scores of the foreign samples.

    Returns
    -------
    float
        1.0 if every foreign sample has a larger score than all others, 0.5 for chance.
        Below 0.5 the score has the wrong sign: use ``OOD_SCORES`` or change it.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import ood_auroc
    >>> ood_auroc([0.1, 0.4], [0.3, 0.8])
    0.75
    """
    known, foreign = _in_and_out(scores_in, scores_out)
    is_foreign = np.r_[np.zeros(len(known)), np.ones(len(foreign))]
    return float(roc_auc_score(is_foreign, np.r_[known, foreign]))


def ood_false_positive_rate(scores_in, scores_out, *, detected=0.95):
    """Share of known samples classified as foreign at a given detection rate.

    Parameters
    ----------
    scores_in : array-like of shape (n_in,)
        Scores of samples of the training distribution; larger = more out of it.
    scores_out : array-like of shape (n_out,)
        Scores of the foreign samples.
    detected : float, default=0.95
        Share of the foreign samples that must be detected (FPR at 95 % TPR).

    Returns
    -------
    float
        In [0, 1], smaller is better.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import ood_false_positive_rate
    >>> ood_false_positive_rate([0.1, 0.4], [0.3, 0.8])  # threshold 0.3
    0.5
    """
    check_numbers(Interval(Real, 0, 1, closed="right"), detected=detected)
    known, foreign = _in_and_out(scores_in, scores_out)
    needed = max(int(np.ceil(detected * len(foreign) - 1e-9)), 1)
    threshold = np.sort(foreign)[len(foreign) - needed]
    return float((known >= threshold).mean())
