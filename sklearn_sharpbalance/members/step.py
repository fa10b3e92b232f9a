"""One update on a mixed batch: SAM for its first part, plain descent for the rest."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from sklearn_sharpbalance.runtime.torch_internals import foreach_add_

__all__ = ["balanced_step", "set_learning_rate"]


def balanced_step(
    optimizer,
    loss_of: Callable[[slice], torch.Tensor],
    n_sam: int,
    n_places: int,
    *,
    sam_share=None,
    both_parts: Callable[[], tuple[torch.Tensor, list]] | None = None,
    module=True,
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward,
    perturbed_pass=nullcontext,
    before_update: Callable[[], object] | None = None,
    descend: Callable[[], object] | None = None,
) -> torch.Tensor:
    r"""Make an update on a batch whose first ``n_sam`` samples get SAM.

    The update direction is

    .. math:: (1-s) \nabla L_R(w) + s \nabla L_S(w + \epsilon), \quad
       \epsilon = \rho \nabla L_S(w) / \|\nabla L_S(w)\|

    with the SAM part S of share s and the normal part R. An empty S is exactly the
    base optimizer, a full S exactly SAM. Other methods replace the second term:
    Momentum-SAM by the gradient at weights moved along the momentum, with one pass for
    each part; LookSAM by its combination of gradients if there is no perturbed pass.

    Parameters
    ----------
    optimizer : SharpnessAwareOptimizer
    loss_of : callable
        Loss of a slice of the batch: the sum over its samples of share times loss,
        which includes the factors s and 1 - s.
    n_sam, n_places : int
        Number of samples in the SAM part, and in the batch.
    sam_share : float or Tensor, default=None
        The share s in the loss of the SAM part.
    both_parts : callable, default=None
        Writes the gradients of the SAM part to ``.grad``, and returns the loss of the
        batch and pairs of weight and gradient of the normal part; faster than one pass
        for each part. If the optimizer has no clean pass, it is called at the perturbed
        weights and must use the unperturbed weights for the normal part.
    module : nn.Module, True or False, default=True
        Module whose BatchNorm statistics the perturbed pass does not update; True is
        every module that is called, False updates them.
    backward : callable, default=Tensor.backward
        Adds the gradients of a loss to ``.grad``.
    perturbed_pass : callable, default=nullcontext
        Returns a context for the perturbed pass, if it follows a pass of the SAM part
        at the unperturbed weights.
    before_update : callable, default=None
        Called when the gradients are complete, before the base optimizer's step.
    descend : callable, default=None
        Makes the base optimizer's step; None is ``optimizer.descend``.

    Returns
    -------
    loss : Tensor
        Loss at the weights before the update, detached. Without a clean pass, the loss
        of the SAM part is that at the perturbed weights.
    """
    optimizer.zero_grad()
    sam_part, normal_part = slice(0, n_sam), slice(n_sam, n_places)
    losses: list[torch.Tensor] = []
    normal = None

    def pass_part(part):
        loss = loss_of(part)
        backward(loss)
        losses.append(loss.detach())

    together = both_parts if 0 < n_sam < n_places else None

    def pass_sam_part():
        nonlocal normal
        if together is None:
            pass_part(sam_part)
        else:
            loss, normal = together()
            losses.append(loss.detach())

    if n_sam < n_places and together is None:
        pass_part(normal_part)
        if n_sam:
            normal = _take_gradients(optimizer)
    if n_sam and not optimizer.clean_pass:
        # The only pass over these samples: it updates the statistics of BatchNorm.
        with optimizer.perturbed(freeze_norms=False):
            pass_sam_part()
    elif n_sam:
        pass_sam_part()
        if optimizer.perturbs:
            moved = optimizer.perturbed(freeze_norms=module, grad_scale=sam_share)
            with moved, perturbed_pass():
                backward(loss_of(sam_part))
        else:
            optimizer.reuse()
    _add_gradients(normal)
    if before_update is not None:
        before_update()
    (descend or optimizer.descend)()
    return sum(losses[1:], start=losses[0])


def _take_gradients(optimizer):
    """Return pairs of weight and gradient, and reset ``.grad``.

    Adding them later is one call; accumulating would be one for every weight.
    """
    kept = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                kept.append((param, param.grad))
                param.grad = None
    return kept


def _add_gradients(kept):
    """Add gradients of :func:`_take_gradients` to ``.grad``."""
    if not kept:
        return
    for param, grad in kept:
        if param.grad is None:
            param.grad = torch.zeros_like(grad)
    foreach_add_([param.grad for param, _ in kept], [grad for _, grad in kept])


def set_learning_rate(optimizer, factor: float) -> None:
    """Set every group's rate to ``factor`` times its initial rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
