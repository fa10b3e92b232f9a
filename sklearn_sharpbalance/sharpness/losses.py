"""Sharpness as a sample's loss, or as its rise at perturbed weights."""

from contextlib import contextmanager

import torch

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.autodiff.chunks import in_chunks, map_chunks
from sklearn_sharpbalance.autodiff.losses import sample_losses
from sklearn_sharpbalance.autodiff.rows import Rows
from sklearn_sharpbalance.autodiff.state import evaluation_mode, trainable_parameters
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import SAM
from sklearn_sharpbalance.runtime.torch_internals import foreach_add_
from sklearn_sharpbalance.sharpness.base import SharpnessScorer, as_array

__all__ = ["LossRiseScorer", "LossScorer", "loss_rise", "per_sample_loss"]


def per_sample_loss(net, X, y, *, chunk_size=512):
    """Return the loss of each sample in eval mode.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net.
    X : array, tensor, dict of those, or Dataset
    y : array or tensor of shape (N,)
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.

    Returns
    -------
    tensor of shape (N,)

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear, module__in_features=2, module__out_features=2,
    ...     module__bias=False, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> per_sample_loss(net, torch.zeros(1, 2), torch.tensor([0]))  # log 2
    tensor([0.6931])
    """
    rows = Rows(X, y, net.device)

    def losses(part):
        x, targets = rows[part]
        return sample_losses(net, net.infer(x), targets)  # (B,)

    with evaluation_mode(net.module_), torch.no_grad():
        return in_chunks(losses, len(rows), chunk_size)


def loss_rise(net, X, y, *, rho=0.05, chunk_size=512):
    r"""Return the rise of each sample's loss when SAM perturbs the weights.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net; its weights are restored bit for bit.
    X : array, tensor, dict of those, or Dataset
    y : array or tensor of shape (N,)
    rho : float, default=0.05
        Length of the perturbation.
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.

    Returns
    -------
    tensor of shape (N,)
        May be negative: a rise of the mean loss can lower the loss of some samples.

    Notes
    -----
    :math:`\ell_n(w + \epsilon) - \ell_n(w)` with one perturbation
    :math:`\epsilon = \rho\, g / \|g\|` for all samples, where :math:`g` is the
    gradient of the mean loss over the *whole* set. A perturbation per mini-batch, as
    in training, would make the score of a sample depend on its mini-batch. All samples
    have the same weight in :math:`g`: the sample weights of an ensemble multiply the
    scores and do not change the perturbation.

    Examples
    --------
    At zero weights ``g`` has the direction ``(-1, 1) x``, so after a step of length
    ``rho`` the logits of ``x = 1`` differ by ``rho * sqrt(2)``.

    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear, module__in_features=1, module__out_features=2,
    ...     module__bias=False, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> _ = net.module_.weight.data.zero_()
    >>> loss_rise(net, torch.ones(1, 1), torch.tensor([0]), rho=1 / 2**0.5)
    tensor([0.6201])
    """
    check_numbers(NON_NEGATIVE, rho=rho)
    if not trainable_parameters(net.module_):
        raise InvalidInputError(
            f"{type(net.module_).__name__} has no trainable parameters, so there are "
            "no weights to move. Unfreeze some, or use sharpness='loss'."
        )
    before = per_sample_loss(net, X, y, chunk_size=chunk_size)  # (N,)
    gradients = _mean_gradients(net, Rows(X, y, net.device), chunk_size)
    with _moved_along(gradients, rho):
        return per_sample_loss(net, X, y, chunk_size=chunk_size) - before


def _mean_gradients(net, rows, chunk_size):
    """Return the gradient of the mean loss, by trainable parameter."""
    params = list(trainable_parameters(net.module_).values())

    def summed(part):
        x, y = rows[part]
        loss = sample_losses(net, net.infer(x), y).sum()
        return torch.autograd.grad(loss, params, materialize_grads=True)

    totals = [torch.zeros_like(p) for p in params]
    with evaluation_mode(net.module_):
        for part in map_chunks(summed, len(rows), chunk_size):
            foreach_add_(totals, part)
    return {p: total / len(rows) for p, total in zip(params, totals)}


@contextmanager
def _moved_along(gradients, rho):
    """Perturb the weights as SAM does; restore weights and ``.grad`` on exit."""
    kept = {p: p.grad for p in gradients}
    try:
        for p, gradient in gradients.items():
            p.grad = gradient
        with SAM(gradients, rho=rho).perturbed(freeze_norms=False):
            yield
    finally:
        for p, gradient in kept.items():
            p.grad = gradient


class LossScorer(SharpnessScorer):
    """Loss of each sample, which measures its difficulty without any curvature.

    Parameters
    ----------
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.

    See Also
    --------
    per_sample_loss : The function behind it.

    Examples
    --------
    >>> LossScorer().degree
    1
    """

    degree = 1

    def __init__(self, chunk_size=512):
        self.chunk_size = chunk_size

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        check_numbers(POSITIVE_INTEGER, chunk_size=self.chunk_size)

    def score_samples(self, net, X, y):
        """Return the loss of each sample; see the base class."""
        return as_array(per_sample_loss(net, X, y, chunk_size=self.chunk_size))


class LossRiseScorer(SharpnessScorer):
    """Rise of each sample's loss under the perturbation of SAM.

    Parameters
    ----------
    rho : float, default=0.05
        Length of the perturbation.
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.

    See Also
    --------
    loss_rise : The function behind it.

    Notes
    -----
    Sample weights of an ensemble multiply the scores. They do not change the direction
    of the perturbation.

    References
    ----------
    .. [1] P. Foret et al., "Sharpness-aware minimization for efficiently improving
       generalization", ICLR 2021.

    Examples
    --------
    >>> LossRiseScorer(rho=0.1)
    LossRiseScorer(rho=0.1)
    """

    degree = 1

    def __init__(self, rho=0.05, chunk_size=512):
        self.rho = rho
        self.chunk_size = chunk_size

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        check_numbers(POSITIVE_INTEGER, chunk_size=self.chunk_size)
        check_numbers(NON_NEGATIVE, rho=self.rho)

    def score_samples(self, net, X, y):
        """Return the loss rise of each sample; see the base class."""
        return as_array(loss_rise(net, X, y, rho=self.rho, chunk_size=self.chunk_size))
