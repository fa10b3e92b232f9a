"""Sharpness-aware minimization."""

import torch

from sklearn_sharpbalance.optim.base import SharpnessAwareOptimizer

__all__ = ["SAM"]


class SAM(SharpnessAwareOptimizer):
    r"""Sharpness-aware minimization over any torch optimizer.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        Parameters or parameter groups.
    base_optimizer : type, default=torch.optim.SGD
        Class of the optimizer that makes the update.
    rho : float, or list or Tensor of M floats, default=0.05
        Length of the perturbation; one per member in a stacked group. 0 gives the
        base optimizer, bit for bit if both calls of the closure compute the same
        (dropout, for example, draws new numbers in each).
    stacked : bool, default=False
        Whether each parameter has a leading axis of M members; see
        :class:`SharpnessAwareOptimizer`.
    **base_kwargs
        Arguments of the base optimizer, e.g. ``lr`` and ``momentum``.

    Notes
    -----
    With :math:`g = \nabla L(w)`, the base optimizer descends along

    .. math:: \nabla L(w + \epsilon), \qquad
              \epsilon = \rho \, \frac{g}{\|g\|_2 + 10^{-12}},

    where the norm is over all parameters. A gradient of zero gives no perturbation.

    References
    ----------
    Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021.

    Examples
    --------
    For :math:`L(w) = \|w\|^2 / 2` the gradient at :math:`w + \epsilon` is
    :math:`w + \rho\, w / \|w\|`:

    >>> import torch
    >>> from sklearn_sharpbalance.optim import SAM
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = SAM([w], torch.optim.SGD, rho=1.0, lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), [round(x, 4) for x in w.tolist()]
    (12.5, [1.2, 1.6])
    """

    def __init__(
        self,
        params,
        base_optimizer=torch.optim.SGD,
        rho=0.05,
        *,
        stacked=False,
        **base_kwargs,
    ):
        options = {"rho": rho, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    def _direction(self, bucket, grad_scale):
        return bucket.grads, bucket.grads
