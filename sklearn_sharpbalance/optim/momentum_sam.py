"""Momentum-SAM: sharpness-aware minimization with one pass per step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim._buckets import collect, widened
from sklearn_sharpbalance.optim.sam import TINY, SharpnessAwareOptimizer

BUFFERS = ("momentum_buffer", "exp_avg")  # of SGD, RMSprop, Muon; of Adam and the like


class MomentumSAM(SharpnessAwareOptimizer):
    r"""SAM that perturbs along the momentum, so that a step takes one pass.

    Parameters
    ----------
    params, stacked, **base_kwargs
        As for :class:`SAM`.
    base_optimizer : type, default=torch.optim.SGD
        Class of the optimizer that makes the update. It must have a momentum: SGD,
        RMSprop or Muon with ``momentum > 0``, or Adam and its relatives.
    rho : float, or list or Tensor of M floats, default=0.3
        Length of the perturbation. Good values are larger than those of SAM. 0 gives
        the base optimizer, bit for bit.

    Notes
    -----
    With :math:`v` the momentum of the base optimizer (the ``momentum_buffer`` of SGD,
    the first moment ``exp_avg`` of Adam), the base optimizer descends along

    .. math:: \nabla L(w + \epsilon), \qquad
              \epsilon = -\rho \, \frac{v}{\|v\|_2 + 10^{-12}},

    where the norm is over all parameters. The perturbation has the direction of the
    base optimizer's last step (also with ``maximize=True``), not that of the gradient.
    Before the first step there is no momentum, and no perturbation.

    The gradient at :math:`w` is not needed: :meth:`step` calls the closure once, and
    returns the loss at the perturbed weights. As this is the only pass over the batch,
    it updates the running statistics of batch norms: once per sample, with activations
    at the perturbed weights.

    References
    ----------
    Becker, Altrock and Risse, "Momentum-SAM: Sharpness Aware Minimization without
    Computational Overhead", arXiv:2401.12033, 2024.

    Examples
    --------
    >>> import torch
    >>> from sklearn_sharpbalance.optim import MomentumSAM
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = MomentumSAM([w], rho=1.0, lr=0.5, momentum=0.9)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), w.tolist()  # no momentum yet
    (12.5, [1.5, 2.0])
    >>> with optimizer.perturbed():  # v = (3, 4)
    ...     print([round(x, 4) for x in w.tolist()])
    [0.9, 1.2]
    """

    clean_pass = False

    def __init__(
        self, params, base_optimizer=SGD, rho=0.3, *, stacked=False, **base_kwargs
    ):
        options = {"rho": rho, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)

    @classmethod
    def passes_per_sample(cls, options: Mapping[str, Any]) -> float:
        return 1.0

    def step(self, closure=None, *, scaler=None, freeze_norms=False):
        """Make one update along the gradient at the perturbed weights.

        The parameters are those of :meth:`SAM.step`. The closure is called once, at the
        perturbed weights, and its value is returned.
        """
        evaluate = self._evaluation(closure)
        with self.perturbed(freeze_norms=freeze_norms):
            loss = evaluate()
        self.descend(scaler=scaler)
        return loss

    def perturbed(self, *, freeze_norms=False, set_to_none=True, grad_scale=None):
        """Move to the perturbed weights inside the ``with`` block.

        As :meth:`SAM.perturbed`, but it needs no gradient and no ``grad_scale``, and
        updates running statistics of batch norms: no other pass over these samples
        does it.
        """
        return super().perturbed(
            freeze_norms=freeze_norms, set_to_none=set_to_none, grad_scale=grad_scale
        )

    @torch.no_grad()
    def write_perturbed(self, out: Tensor) -> None:
        """Write the weights of :meth:`perturbed` to another tensor; move none.

        Parameters
        ----------
        out : Tensor of shape (M, P)
            Of the shape of the only parameter, which is a stack.
        """
        (group,) = self.param_groups
        (weights,) = group["params"]
        momentum = self._buffer(weights)
        if momentum is None:
            out.copy_(weights)
            return
        norm = torch.linalg.vector_norm(momentum, dim=1, keepdim=True)  # (M, 1)
        rho = torch.as_tensor(self._option(group, "rho")).to(norm).unsqueeze(1)
        torch.addcmul(weights, momentum, rho / (norm + TINY), value=-1, out=out)

    def _check_groups(self, groups, first=0):
        super()._check_groups(groups, first)
        for group in groups[first:]:
            if not _has_momentum(group):
                raise InvalidInputError(
                    "MomentumSAM perturbs along the momentum of its base optimizer; "
                    f"got {type(self.base_optimizer).__name__} without one. Pass "
                    "momentum=0.9 to SGD, or use an optimizer with a first moment, "
                    "such as Adam or AdamW."
                )

    def _buffer(self, param: Tensor) -> Tensor | None:
        """Return the momentum of a parameter, None before its first step."""
        entries = self.state.get(param)
        if not entries:
            return None
        for name in BUFFERS:
            if name in entries:
                return entries[name]
        raise InvalidInputError(
            "MomentumSAM looks for 'momentum_buffer' or 'exp_avg' in the state of its "
            f"base optimizer; {type(self.base_optimizer).__name__} has only "
            f"{sorted(map(str, entries))}. Use SGD, Adam, AdamW or the like."
        )

    def _moving(self):
        return collect(
            self.param_groups, wanted=lambda param: self._buffer(param) is not None
        )

    def _direction(self, bucket, grad_scale):
        buffers = [self._buffer(param) for param in bucket.params]
        momentum = widened([v for v in buffers if v is not None])
        return momentum, momentum

    def _sign(self, group):
        return -1.0  # also with maximize: the base optimizer always steps along -v


def _has_momentum(group: Mapping[str, Any]) -> bool:
    betas = group.get("betas")
    return bool(group.get("momentum") or (betas and betas[0]))
