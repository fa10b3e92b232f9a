"""One update on a mixed batch: SAM on its first part, plain descent on the rest."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

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
    r"""Update on a batch whose first ``n_sam`` samples get SAM.

    The update direction is

    .. math:: (1-s) \nabla L_R(w) + s \nabla L_S(w + \epsilon), \quad
       \epsilon = \rho \nabla L_S(w) / \|\nabla L_S(w)\|

    with the SAM part S of share s and the normal part R. An empty S is exactly the
    base optimizer, a full S exactly SAM. Other methods replace the second term by
    their own: Momentum-SAM by the gradient at weights that moved along the momentum,
    so that each part is passed once; LookSAM by its combination of gradients in steps
    without a perturbed pass.

    Parameters
    ----------
    optimizer : SharpnessAwareOptimizer
    loss_of : callable
        Loss of a slice of the batch: the sum over its samples of share times loss,
        so that the factors s and 1 - s are in it.
    n_sam, n_places : int
        Samples of the SAM part, and of the batch.
    sam_share : float or Tensor, default=None
        The share s, which the loss of the SAM part was multiplied with.
    both_parts : callable, default=None
        Puts the gradients of the SAM part into ``.grad`` and returns the loss of the
        batch and the pairs of weight and gradient of the normal part; a quicker way
        than one pass for each. If the optimizer has no clean pass, it is called at the
        perturbed weights and must pass the normal part through those before.
    module : nn.Module, True or False, default=True
        Whose BatchNorm statistics the perturbed pass leaves alone; True finds out.
    backward : callable, default=Tensor.backward
        Puts the gradients of a loss into ``.grad``.
    perturbed_pass : callable, default=nullcontext
        Makes a context manager around the perturbed pass, if the SAM part was passed
        at the unperturbed weights before.
    before_update : callable, default=None
        Called when the gradients are complete, before the base optimizer's step.
    descend : callable, default=None
        Makes the base optimizer's step; None is ``optimizer.descend``.

    Returns
    -------
    loss : Tensor
        Loss at the weights before the update, detached. If the SAM part is not passed
        at these weights, its loss is that at the perturbed ones.
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
            normal = _set_gradients_aside(optimizer)
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


def _set_gradients_aside(optimizer):
    """Take all gradients out of ``.grad``: adding them later takes one call, where
    accumulating would take one for every weight."""
    kept = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                kept.append((param, param.grad))
                param.grad = None
    return kept


def _add_gradients(kept):
    """Add gradients that were set aside to those that lie in ``.grad``."""
    if not kept:
        return
    for param, grad in kept:
        if param.grad is None:
            param.grad = torch.zeros_like(grad)
    torch._foreach_add_([param.grad for param, _ in kept], [grad for _, grad in kept])


def set_learning_rate(optimizer, factor: float) -> None:
    """Set every group to ``factor`` times the rate it started from."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
