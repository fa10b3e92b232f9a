"""Adaptive sharpness-aware minimization."""

from torch.optim import SGD

from sklearn_sharpbalance._validation import NON_NEGATIVE
from sklearn_sharpbalance.optim._buckets import widened
from sklearn_sharpbalance.optim.sam import SharpnessAwareOptimizer
from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_abs,
    foreach_add_,
    foreach_mul,
)


class ASAM(SharpnessAwareOptimizer):
    r"""Adaptive SAM: a perturbation in proportion to each weight's size.

    Parameters
    ----------
    params, base_optimizer, stacked, **base_kwargs
        As for :class:`SAM`.
    rho : float, or list or Tensor of M floats, default=0.05
        Length of the perturbation, measured relative to the weights. The paper uses
        ten times the value of SAM.
    eta : float, default=0.01
        Added to the absolute value of each weight, so that weights near 0 move too.

    Notes
    -----
    With :math:`g = \nabla L(w)` and :math:`T = \mathrm{diag}(|w| + \eta)`,

    .. math:: \epsilon = \rho \, \frac{T^2 g}{\|T g\|_2 + 10^{-12}},

    which scales with the weights of a layer. :math:`T` covers all parameters, also the
    biases.

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

    _rules = {**SharpnessAwareOptimizer._rules, "eta": NON_NEGATIVE}

    def __init__(
        self,
        params,
        base_optimizer=SGD,
        rho=0.05,
        eta=0.01,
        *,
        stacked=False,
        **base_kwargs,
    ):
        options = {"rho": rho, "eta": eta, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    def _direction(self, bucket, grad_scale):
        sizes = foreach_abs(widened(bucket.params))
        foreach_add_(sizes, self._option(bucket.group, "eta"))
        once = foreach_mul(bucket.grads, sizes)  # T g
        return foreach_mul(once, sizes), once
