"""The parts of predictive uncertainty."""

from typing import NamedTuple

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.metrics._checks import check_member_probas
from sklearn_sharpbalance.metrics.diversity import sample_disagreement
from sklearn_sharpbalance.metrics.ood import mutual_information, predictive_entropy


class UncertaintyParts(NamedTuple):
    """Uncertainty of each sample; ``total = aleatoric + epistemic``.

    Attributes
    ----------
    total : ndarray of shape (n_samples,)
        Uncertainty of the members' mean.
    aleatoric : ndarray of shape (n_samples,)
        Mean uncertainty of the members: noise in the data.
    epistemic : ndarray of shape (n_samples,)
        Differences between the members: lack of knowledge.
    disagreement : ndarray of shape (n_samples,)
        Fraction of pairs of members that predict different classes.
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    disagreement: np.ndarray


def uncertainty_parts(member_probas, *, kind="entropy"):
    r"""Split the uncertainty of each sample into its aleatoric and epistemic part.

    Parameters
    ----------
    member_probas : array-like of shape (n_members, n_samples, n_classes)
        Probabilities of each member.
    kind : {"entropy", "variance"}, default="entropy"
        Measure of uncertainty. "entropy", in nats: :math:`H(\bar p)` is the total,
        :math:`\frac1M \sum_m H(p^m)` the aleatoric part and the mutual information the
        epistemic part. "variance", that of the one-hot label summed over the classes:
        :math:`\sum_c \bar p_c (1 - \bar p_c)`, its mean over the members, and the
        variance :math:`\sum_c \frac1M \sum_m (p^m_c - \bar p_c)^2` over them.

    Returns
    -------
    parts : UncertaintyParts

    Examples
    --------
    >>> from sklearn_sharpbalance.metrics import uncertainty_parts
    >>> parts = uncertainty_parts([[[1.0, 0.0]], [[0.0, 1.0]]], kind="variance")
    >>> float(parts.total[0]), float(parts.aleatoric[0]), float(parts.epistemic[0])
    (0.5, 0.0, 0.5)
    """
    probas = check_member_probas(member_probas).astype(np.float64)  # (M, N, C)
    if kind == "entropy":
        total, epistemic = predictive_entropy(probas), mutual_information(probas)
    elif kind == "variance":
        mean = probas.mean(axis=0)
        total = (mean * (1 - mean)).sum(axis=-1)
        epistemic = ((probas - mean) ** 2).mean(axis=0).sum(axis=-1)
    else:
        raise InvalidInputError(f"kind must be 'entropy' or 'variance', got {kind!r}.")
    aleatoric = np.maximum(total - epistemic, 0.0)
    return UncertaintyParts(
        total=total,
        aleatoric=aleatoric,
        epistemic=epistemic,
        disagreement=sample_disagreement(probas.argmax(axis=-1)),
    )
