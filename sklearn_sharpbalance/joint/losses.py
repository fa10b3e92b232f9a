r"""Diversity terms of joint training: losses for members that agree.

Pure functions on logits :math:`f^m` with :math:`p^m = \mathrm{softmax} f^m`. A term
over K members is :math:`\frac{1}{K(K-1)} \sum_{m<l}` of a pair loss, half of its mean
over pairs. The term over a random subset of the members is then an unbiased estimate of
the term over all members, for any size of the subset.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

__all__ = [
    "DIVERSITY_LOSSES",
    "DiversityLoss",
    "a2d_term",
    "agree_to_disagree",
    "divdis_term",
    "hard_sample_weights",
    "mutual_information_loss",
    "sed_term",
]

SMALLEST_LOSS = 1e-6  # of a batch; keeps weights finite for a perfect fit


def agree_to_disagree(logits_p, logits_q):
    r"""Return the A2D loss of two predictions, which is small if they differ.

    Parameters
    ----------
    logits_p, logits_q : Tensor of shape (..., C)
        Logits of the first and of the second member; shapes broadcast.

    Returns
    -------
    loss : Tensor of shape (...)

    Notes
    -----
    .. math:: -\log\left( p_c (1 - q_c) + (1 - p_c) q_c \right), \quad
       c = \arg\max p

    The loss is computed from logarithms: it and its gradient stay finite if both
    members are certain of the same class.

    References
    ----------
    Pagliardini et al., Agree to disagree: diversity through disagreement for better
    transferability, ICLR 2023.

    Examples
    --------
    >>> import torch
    >>> p, q = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log()
    >>> agree_to_disagree(p, q).exp()  # 1 / (0.75 * 0.75 + 0.25 * 0.25)
    tensor(1.6000)
    """
    top = logits_p.argmax(-1, keepdim=True)
    p, not_p = _class_and_rest(logits_p, top)
    q, not_q = _class_and_rest(logits_q, top)
    return -torch.logaddexp(p + not_q, not_p + q)


def _class_and_rest(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of one class and of all others together.

    The second is not computed from the first, because ``log(1 - p)`` is infinite if
    ``p`` is rounded to one.
    """
    log_proba = logits.log_softmax(-1)
    index = index.expand(*log_proba.shape[:-1], 1)
    chosen = log_proba.gather(-1, index).squeeze(-1)
    rest = log_proba.scatter(-1, index, -torch.inf).logsumexp(-1)
    return chosen, rest


def hard_sample_weights(mean_logits, y, weight):
    r"""Return the weight of each sample in SED, (B,), which is larger for hard samples.

    .. math:: a_n = \mathrm{CE}_n \Big/
       \Big( \frac{1}{B} \sum_b \mathrm{CE}_b \Big)^2

    of the mean logits (B, C), without gradient. Samples that the ensemble gets wrong
    have larger weights. The mean weight of a batch is the inverse of its loss, so that
    weights are small early in training. Means are weighted by ``weight``, so that a
    batch of samples of low weight does not count as well fitted.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    >>> a = hard_sample_weights(logits, torch.tensor([0, 1]), torch.tensor([0.5, 0.5]))
    >>> a  # 1 / log 2
    tensor([1.4427, 1.4427])
    """
    losses = cross_entropy(mean_logits.detach(), y, reduction="none")  # (B,)
    total = weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    batch_loss = ((losses * weight).sum() / total).clamp_min(SMALLEST_LOSS)
    return losses / batch_loss.square()


def a2d_term(logits, weight):
    r"""Return the A2D term over all pairs of the members with logits (K, B, C).

    .. math:: \frac{1}{K(K-1)} \sum_{m<l} \sum_n w_n \mathrm{A2D}(p^m(x_n), p^l(x_n))
    """
    n_members = len(logits)
    per_sample = sum(
        agree_to_disagree(logits[m], logits[m + 1 :]).sum(0)
        for m in range(n_members - 1)
    )  # (B,)
    return (per_sample * weight).sum() / (n_members * (n_members - 1))


def sed_term(logits, mean_logits, y, weight):
    r"""Return the SED term: A2D on the training samples, weighted by their hardness.

    .. math:: \frac{1}{K(K-1)} \sum_{m<l} \frac{1}{B} \sum_n
       \mathrm{stopgrad}(a_n) \, \mathrm{A2D}(p^m(x_n), p^l(x_n))

    over the drawn members, with :math:`a_n` from :func:`hard_sample_weights` of the
    mean logits of all members. Rubinstein et al., Scalable ensemble diversification for
    OOD generalization and detection, 2024.
    """
    return a2d_term(logits, weight * hard_sample_weights(mean_logits, y, weight))


def mutual_information_loss(proba_p, proba_q):
    r"""Return the mutual information of two members' predictions over a batch.

    .. math:: \mathrm{KL}\Big( \frac1B \sum_n p(x_n) \otimes q(x_n) \,\Big\|\,
       \frac1B \sum_n p(x_n) \otimes \frac1B \sum_n q(x_n) \Big)

    of probabilities (..., B, C), whose shapes broadcast.

    Examples
    --------
    >>> import torch
    >>> p = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mutual_information_loss(p, p)  # log 2
    tensor(0.6931)
    """
    tiny = torch.finfo(proba_p.dtype).tiny
    joint = proba_p.mT @ proba_q / proba_p.shape[-2]  # (..., C, C)
    independent = proba_p.mean(-2).unsqueeze(-1) * proba_q.mean(-2).unsqueeze(-2)
    ratio = joint.clamp_min(tiny).log() - independent.clamp_min(tiny).log()
    return (joint * ratio).sum((-2, -1))


def divdis_term(logits, prior):
    r"""Return the DivDis term, which is small for statistically independent members.

    .. math:: \frac{1}{K(K-1)} \sum_{m<l} \mathrm{MI}(p^m, p^l)
       + \frac1K \sum_m \mathrm{KL}\Big( \frac1B \sum_n p^m(x_n) \,\Big\|\, \pi \Big)

    of logits (K, B, C) on unlabelled samples. The second part keeps members from
    predicting one class for all samples: :math:`\pi` are the fractions of the classes
    among the labelled samples. The paper has a weight for each part; here
    ``diversity_weight`` applies to both. Lee, Yao and Finn, Diversify and disambiguate:
    out-of-distribution robustness via disagreement, ICLR 2023.
    """
    n_members, proba = len(logits), logits.softmax(-1)
    information = sum(
        mutual_information_loss(proba[m], proba[m + 1 :]).sum()
        for m in range(n_members - 1)
    )
    tiny = torch.finfo(proba.dtype).tiny
    marginal = proba.mean(1).clamp_min(tiny)  # (K, C)
    drift = (marginal * (marginal.log() - prior.clamp_min(tiny).log())).sum(1)
    return information / (n_members * (n_members - 1)) + drift.mean()


class DiversityLoss(NamedTuple):
    """A diversity term, and whether it is computed on samples without labels."""

    term: Callable[..., Tensor]  # of logits (K, B, C), the batch and mean logits
    needs_unlabeled: bool


def _sed(logits, batch, mean_logits):
    return sed_term(logits, mean_logits, y=batch.y, weight=batch.weight)


def _a2d(logits, batch, mean_logits):
    n = logits.shape[1]
    return a2d_term(logits, logits.new_full((n,), 1 / n))


def _divdis(logits, batch, mean_logits):
    return divdis_term(logits, batch.prior)


DIVERSITY_LOSSES: dict[str, DiversityLoss] = {
    "sed": DiversityLoss(_sed, needs_unlabeled=False),
    "a2d": DiversityLoss(_a2d, needs_unlabeled=True),
    "divdis": DiversityLoss(_divdis, needs_unlabeled=True),
}
