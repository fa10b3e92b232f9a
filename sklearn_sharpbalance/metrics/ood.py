"""Scores of each sample that separate out-of-distribution samples from others.

``bma_score`` and ``msp_score`` keep the direction of their papers (larger = more in
distribution). In the table ``OOD_SCORES`` larger always means more out of distribution,
as :func:`ood_auroc` expects.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.metrics import roc_auc_score

from sklearn_sharpbalance._validation import check_choice
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import (
    check_member_probas,
    check_proba,
    check_scores,
)
from sklearn_sharpbalance.metrics._outputs import Outputs
from sklearn_sharpbalance.metrics.diversity import unique_predictions


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
    """
    probas = check_member_probas(member_probas)
    return probas.mean(axis=0, dtype=np.float64).max(axis=-1)


def msp_score(proba):
    """Maximum softmax probability (MSP); larger = more in distribution.

    D. Hendrycks and K. Gimpel, "A baseline for detecting misclassified and out-of-
    distribution examples in neural networks", ICLR 2017.

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
    """
    if np.ndim(proba) == 3:
        maxima = check_member_probas(proba, "proba").max(axis=-1)  # (M, N)
        return maxima.mean(axis=0, dtype=np.float64)
    return check_proba(proba).max(axis=-1)


def predictive_diversity_score(member_probas):
    r"""Predictive diversity score (PDS); larger = more out of distribution.

    A. Rubinstein et al., "Scalable ensemble diversification for OOD generalization
    and detection", 2024.

    Parameters
    ----------
    member_probas
        See :func:`bma_score`.

    Returns
    -------
    ndarray of shape (n_samples,)
        :math:`\frac1C \sum_c \max_m p_c^m(x)`, from :math:`1/C` (always with one
        member) to :math:`\min(M, C)/C`. For one-hot predictions it is the number of
        unique predictions divided by :math:`C`.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import predictive_diversity_score
    >>> predictive_diversity_score([[[0.75, 0.25]], [[0.25, 0.75]]])
    array([0.75])
    """
    probas = check_member_probas(member_probas)
    return probas.max(axis=0).mean(axis=-1, dtype=np.float64)


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
        Probabilities; those of members are averaged first.

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

    S. Depeweg et al., "Decomposition of uncertainty in Bayesian deep learning",
    ICML 2018.

    Parameters
    ----------
    member_probas
        See :func:`bma_score`.

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
    """
    probas = check_member_probas(member_probas)
    total = _entropy(probas.mean(axis=0, dtype=np.float64))  # (N,)
    return np.maximum(total - _entropy(probas).mean(axis=0), 0.0)


#: Scores of each sample by name, larger = more out of distribution. Each takes the
#: members' probabilities, (n_members, n_samples, n_classes). For one predictor pass
#: ``proba[None]``.
OOD_SCORES: dict[str, Callable] = {
    "bma": lambda member_probas: -bma_score(member_probas),
    "msp": lambda member_probas: -msp_score(member_probas),
    "pds": predictive_diversity_score,
    "entropy": predictive_entropy,
    "mutual_information": mutual_information,
    "unique": partial(unique_predictions, per_sample=True),
}


def ood_auroc(scores_in, scores_out):
    """Area under the ROC curve of the detection of out-of-distribution samples.

    Parameters
    ----------
    scores_in : array-like of shape (n_in,)
        Scores of samples of the training distribution; larger = more out of it.
    scores_out : array-like of shape (n_out,)
        Scores of the out-of-distribution samples.

    Returns
    -------
    float
        1.0 if every out-of-distribution sample has a larger score than all others, 0.5
        for chance. Below 0.5 the score has the wrong sign.

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import ood_auroc
    >>> ood_auroc([0.1, 0.4], [0.3, 0.8])
    0.75
    """
    inside = check_scores(scores_in, "scores_in")
    outside = check_scores(scores_out, "scores_out")
    is_outside = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(is_outside, np.r_[inside, outside]))


DEFAULT_SCORES = ("msp", "entropy", "mutual_information", "pds")
# Scores that compare members: a single member has none.
OF_DIFFERENCES = frozenset({"mutual_information", "pds", "unique"})
# Scores of one prediction: those of an ensemble use its own prediction.
OF_PREDICTION = frozenset({"msp", "entropy"})
SCORE_NAMES = {
    "msp": "MSP",
    "bma": "BMA",
    "pds": "PDS",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "unique": "unique predictions",
}


def default_scores(outputs: Outputs) -> list[str]:
    """Return the names of the usual scores that a classifier has."""
    missing = OF_DIFFERENCES if len(outputs.member_probas) == 1 else frozenset()
    return [score for score in DEFAULT_SCORES if score not in missing]


def check_score(score: str, outputs: Outputs, name: str) -> None:
    """Raise if the classifier of this name lacks a score."""
    check_choice("score", score, OOD_SCORES)
    if score in OF_DIFFERENCES and len(outputs.member_probas) == 1:
        raise InvalidInputError(
            f"{name} has no score {score!r}: it compares members, and there is only "
            "one."
        )


def ensemble_scores(name: str, outputs: Outputs) -> np.ndarray:
    """Return the ensemble's score of each sample, (N,); larger = more outside."""
    of_ensemble = name in OF_PREDICTION
    probas = outputs.proba[None] if of_ensemble else outputs.member_probas
    return OOD_SCORES[name](probas)


def member_scores(name: str, outputs: Outputs) -> list[np.ndarray]:
    """Return each member's own score (N,); nothing for a score that compares them."""
    if name in OF_DIFFERENCES:
        return []
    return [OOD_SCORES[name](member[None]) for member in outputs.member_probas]
