"""Friendly sharpness-aware minimization."""

import torch
from torch import Tensor
from torch.optim import SGD

from sklearn_sharpbalance._validation import FROM_0_BELOW_1, NON_NEGATIVE
from sklearn_sharpbalance.optim._buckets import Bucket, choose, scaled
from sklearn_sharpbalance.optim.sam import SharpnessAwareOptimizer
from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_add,
    foreach_copy_,
    foreach_sub,
)

AVERAGE = "gradient_average"


class FriendlySAM(SharpnessAwareOptimizer):
    r"""SAM that perturbs along the noise of the batch gradient only.

    Parameters
    ----------
    params, base_optimizer, rho, stacked, **base_kwargs
        As for :class:`SAM`.
    sigma : float, default=1.0
        Multiple of the averaged gradient that is subtracted; 0 gives SAM.
    lmbda : float, default=0.9
        Decay of the moving average, in [0, 1).

    Notes
    -----
    With :math:`g_t = \nabla L(w_t)`, the average estimates the full-batch gradient:

    .. math:: m_t = \lambda m_{t-1} + (1 - \lambda) g_t, \qquad d_t = g_t - \sigma m_t,
              \qquad \epsilon_t = \rho \, \frac{d_t}{\|d_t\|_2 + 10^{-12}},

    from :math:`m_{-1} = 0`, so that the first step is that of SAM. The paper's released
    code uses :math:`m_{t-1}` instead of :math:`m_t`, which is the same direction for
    :math:`\sigma = 1` if both averages have the same start. It starts at the first
    gradient: the averages differ by :math:`\lambda^t g_0` after t more steps.

    The average is updated after the perturbed pass, unless that fails or the gradient
    is not finite.

    References
    ----------
    Li, Zhou, He, Cheng and Huang, "Friendly Sharpness-Aware Minimization", CVPR 2024.

    Examples
    --------
    >>> import torch
    >>> from sklearn_sharpbalance.optim import FriendlySAM
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = FriendlySAM([w], rho=1.0, lmbda=0.5, lr=0.0)
    >>> for slope in [(4.0, 0.0), (4.0, 2.0)]:
    ...     optimizer.zero_grad()
    ...     (w * torch.tensor(slope)).sum().backward()
    ...     with optimizer.perturbed():
    ...         print([round(x, 4) for x in w.tolist()])
    [1.0, 0.0]
    [0.7071, 0.7071]
    """

    _rules = {
        **SharpnessAwareOptimizer._rules,
        "sigma": NON_NEGATIVE,
        "lmbda": FROM_0_BELOW_1,
    }
    own_state_names = (AVERAGE,)

    def __init__(
        self,
        params,
        base_optimizer=SGD,
        rho=0.05,
        sigma=1.0,
        lmbda=0.9,
        *,
        stacked=False,
        **base_kwargs,
    ):
        options = {"rho": rho, "sigma": sigma, "lmbda": lmbda, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    def _averages(self, bucket: Bucket) -> list[Tensor]:
        for param in bucket.params:
            if param not in self._own_state:
                self._own_state[param] = {AVERAGE: torch.zeros_like(param)}
        return [self._own_state[param][AVERAGE] for param in bucket.params]

    def _direction(self, bucket, grad_scale):
        grads, weight = bucket.grads, 1 - self._option(bucket.group, "lmbda")
        if grad_scale is not None:
            inverse, present = _inverse(grad_scale)
            grads, weight = scaled(grads, inverse), weight * present
        averages = self._averages(bucket)
        change = scaled(foreach_sub(grads, averages), weight)
        bucket.pending = foreach_add(change, averages)
        sigma = self._option(bucket.group, "sigma")
        noise = foreach_sub(grads, scaled(bucket.pending, sigma))
        return noise, noise

    @torch.no_grad()
    def _combine(self, buckets):
        for bucket in buckets:
            averages = self._averages(bucket)
            finite = torch.isfinite(bucket.norm)  # () or (M,)
            kept = choose(finite, bucket.pending, averages, bucket.stacked)
            foreach_copy_(averages, kept)
            bucket.pending = []


def _inverse(scale: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    """Return ``1 / scale`` and 1.0, or 0 for both where the scale is 0."""
    if not isinstance(scale, Tensor):
        return (1 / scale, 1.0) if scale > 0 else (0.0, 0.0)
    present = scale > 0
    inverse = torch.where(present, 1 / torch.where(present, scale, 1), 0)
    return inverse, present.to(scale.dtype)
