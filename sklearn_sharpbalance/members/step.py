"""One update on a batch: sharpness-aware, or a step of the base optimizer."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

__all__ = ["set_learning_rate", "training_step"]


def training_step(
    optimizer,
    loss_of_batch: Callable[[], torch.Tensor],
    is_sam: bool,
    *,
    grad_scale=None,
    module=True,
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward,
    perturbed_pass=nullcontext,
    before_update: Callable[[], object] | None = None,
    descend: Callable[[], object] | None = None,
) -> torch.Tensor:
    r"""Make an update on a batch.

    Without SAM it is a step of the base optimizer along :math:`g = \nabla L(w)`, with
    SAM one along :math:`\nabla L(w + \epsilon)`, :math:`\epsilon = \rho g / \|g\|`.
    Other methods have another :math:`\epsilon`: Momentum-SAM moves along the momentum
    and needs one pass; LookSAM combines gradients if there is no perturbed pass.

    Parameters
    ----------
    optimizer : SharpnessAwareOptimizer
    loss_of_batch : callable
        Sum over the samples of weight times loss.
    is_sam : bool
        Whether the samples of the batch get SAM.
    grad_scale : float or Tensor, default=None
        As in :meth:`SharpnessAwareOptimizer.perturbed`.
    module : nn.Module, True or False, default=True
        Module whose BatchNorm statistics the perturbed pass does not update; True is
        every module that is called, False updates them.
    backward : callable, default=Tensor.backward
        Adds the gradients of a loss to ``.grad``.
    perturbed_pass : callable, default=nullcontext
        Returns a context for the perturbed pass, if it follows another pass.
    before_update : callable, default=None
        Called when the gradients are complete, before the base optimizer's step.
    descend : callable, default=None
        Makes the base optimizer's step; None is ``optimizer.descend``.

    Returns
    -------
    loss : Tensor
        Loss of the first pass, detached.
    """

    def pass_batch():
        loss = loss_of_batch()
        backward(loss)
        return loss.detach()

    optimizer.zero_grad()
    if is_sam and not optimizer.clean_pass:
        # The only pass over these samples: it updates the statistics of BatchNorm.
        with optimizer.perturbed(freeze_norms=False):
            loss = pass_batch()
    else:
        loss = pass_batch()
        if is_sam and optimizer.perturbs:
            moved = optimizer.perturbed(freeze_norms=module, grad_scale=grad_scale)
            with moved, perturbed_pass():
                pass_batch()
        elif is_sam:
            optimizer.reuse()
    if before_update is not None:
        before_update()
    (descend or optimizer.descend)()
    return loss


def set_learning_rate(optimizer, factor: float) -> None:
    """Set every group's rate to ``factor`` times its initial rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
