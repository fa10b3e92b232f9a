"""Surrogate-gap guided sharpness-aware minimization."""

import torch
from torch.optim import SGD

from sklearn_sharpbalance._validation import NON_NEGATIVE
from sklearn_sharpbalance.optim._buckets import both_passes, joint_dot, scaled
from sklearn_sharpbalance.optim.sam import SharpnessAwareOptimizer
from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_mul_,
    foreach_sub,
    foreach_sub_,
)


class GSAM(SharpnessAwareOptimizer):
    r"""SAM that also lowers the gap between the perturbed loss and the loss.

    Parameters
    ----------
    params, base_optimizer, stacked, **base_kwargs
        As for :class:`SAM`.
    rho : float, or list or Tensor of M floats, default=0.05
        Length of the perturbation. In the paper it follows the learning rate: set
        ``group["rho"]`` after each scheduler step.
    alpha : float, default=0.4
        Weight of the term that reduces the gap; 0 gives SAM. The paper tunes it per
        network; 0.4 is the value in its authors' CIFAR-10 script.

    Notes
    -----
    With :math:`g = \nabla L(w)` and :math:`g_p = \nabla L(w + \rho g / \|g\|)`, the
    base optimizer descends along

    .. math:: g_p - \alpha\, g_\perp, \qquad
              g_\perp = g - \frac{\langle g, g_p\rangle}{\|g_p\|^2}\, g_p .

    The step along :math:`g_\perp` raises :math:`L(w)` but, to first order, does not
    change the perturbed loss, so that the gap between them shrinks.

    References
    ----------
    Zhuang, Gong, Yuan, Cui, Adam, Dvornek, Tatikonda, Duncan and Liu, "Surrogate Gap
    Minimization Improves Sharpness-Aware Training", ICLR 2022.

    Examples
    --------
    >>> import torch
    >>> from sklearn_sharpbalance.optim import GSAM
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = GSAM([w], rho=0.0, alpha=0.5, lr=1.0)
    >>> (w * torch.tensor([1.0, 2.0])).sum().backward()  # g = (1, 2)
    >>> with optimizer.perturbed():
    ...     w[0].backward()  # g_p = (1, 0), so that g - <g, g_p> g_p = (0, 2)
    >>> w.grad.tolist()
    [1.0, -1.0]
    """

    _rules = {**SharpnessAwareOptimizer._rules, "alpha": NON_NEGATIVE}
    _keeps_gradients = True

    def __init__(
        self,
        params,
        base_optimizer=SGD,
        rho=0.05,
        alpha=0.4,
        *,
        stacked=False,
        **base_kwargs,
    ):
        options = {"rho": rho, "alpha": alpha, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    @torch.no_grad()
    def _combine(self, buckets):
        pairs = both_passes(self.param_groups, buckets)
        if not pairs:
            return
        clean = [bucket.grads for bucket, _ in pairs]
        moved = [grads for _, grads in pairs]
        square = joint_dot(moved, moved, self._stacked)
        # For g = g_p the quotient is exactly 1, which gives the base optimizer's step.
        along = joint_dot(clean, moved, self._stacked)
        along = along / torch.where(square > 0, square, 1)
        for bucket, g_p in pairs:
            orthogonal = foreach_sub(bucket.grads, scaled(g_p, along))
            foreach_mul_(orthogonal, self._option(bucket.group, "alpha"))
            foreach_sub_(bucket.own_grads(), orthogonal)
