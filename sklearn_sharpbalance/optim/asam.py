"""Adaptive sharpness-aware minimization."""

import torch
from torch import Tensor

from sklearn_sharpbalance._validation import Interval, Real
from sklearn_sharpbalance.optim._tensors import widened
from sklearn_sharpbalance.optim.base import SharpnessAwareOptimizer

__all__ = ["ASAM"]


def adaptive_direction(
    weights: list[Tensor], grads: list[Tensor], eta: float
) -> tuple[list[Tensor], list[Tensor]]:
    r""":math:`T^2 g` and :math:`T g` with :math:`T = \mathrm{diag}(|w| + \eta)`."""
    size = list(torch._foreach_abs(widened(weights)))
    torch._foreach_add_(size, eta)
    once = list(torch._foreach_mul(grads, size))
    return list(torch._foreach_mul(once, size)), once


class ASAM(SharpnessAwareOptimizer):
    r"""Adaptive SAM: a perturbation in proportion to each weight's size.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        Parameters or parameter groups.
    base_optimizer : type, default=torch.optim.SGD
        Class of the optimizer that makes the update.
    rho : float, or list or Tensor of M floats, default=0.05
        Length of the perturbation, measured relative to the weights; one per member
        in a stacked group. The paper takes ten times as much as for SAM.
    eta : float, default=0.01
        Added to the size of each weight, so that weights near 0 move too.
    stacked : bool, default=False
        Whether each parameter has a leading axis of M members; see
        :class:`SharpnessAwareOptimizer`.
    **base_kwargs
        Arguments of the base optimizer, e.g. ``lr`` and ``momentum``.

    Notes
    -----
    With :math:`g = \nabla L(w)` and :math:`T = \mathrm{diag}(|w| + \eta)`,

    .. math:: \epsilon = \rho \, \frac{T^2 g}{\|T g\|_2 + 10^{-12}},

    which scales along when the weights of a layer are scaled. :math:`T` is taken of all
    parameters, biases too.

    References
    ----------
    Kwon, Kim, Park and Choi, "ASAM: Adaptive Sharpness-Aware Minimization for
    Scale-Invariant Learning of Deep Neural Networks", ICML 2021.

    Examples
    --------
    >>> import torch
    >>> from sklearn_sharpbalance.optim import ASAM
    >>> w = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = ASAM([w], rho=0.5, eta=0.0, lr=0.1)
    >>> w.sum().backward()
    >>> with optimizer.perturbed():
    ...     print(w.item())
    3.0
    """

    _rules = {
        **SharpnessAwareOptimizer._rules,
        "eta": Interval(Real, 0, None, closed="left"),
    }

    def __init__(
        self,
        params,
        base_optimizer=torch.optim.SGD,
        rho=0.05,
        eta=0.01,
        *,
        stacked=False,
        **base_kwargs,
    ):
        options = {"rho": rho, "eta": eta, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    def _direction(self, bucket, grad_scale):
        eta = self._option(bucket.group, "eta")
        return adaptive_direction(bucket.weights, bucket.grads, eta)
