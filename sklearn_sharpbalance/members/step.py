"""One update on a mixed batch: SAM on its first part, plain descent on the rest."""

from collections.abc import Callable
from contextlib import nullcontext

import torch

__all__ = ["balanced_step", "set_learning_rate"]


def balanced_step(
    optimizer,
    loss_of: Callable[[slice], torch.Tensor],
    n_sam: int,
    n_places: int,
    *,
    sam_share=None,
    module=True,
    perturbed_pass=nullcontext,
    before_update: Callable[[], object] | None = None,
) -> torch.Tensor:
    r"""Update on a batch whose first ``n_sam`` samples get SAM.

    The update direction is

    .. math:: (1-s) \nabla L_R(w) + s \nabla L_S(w + \epsilon), \quad
       \epsilon = \rho \nabla L_S(w) / \|\nabla L_S(w)\|

    with the SAM part S of share s and the normal part R. An empty S is exactly the
    base optimizer, a full S exactly SAM.

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
    module : nn.Module or True, default=True
        Whose BatchNorm statistics the perturbed pass leaves alone; True finds out.
    perturbed_pass : callable, default=nullcontext
        Makes a context manager around the perturbed pass.
    before_update : callable, default=None
        Called when the gradients are complete, before the base optimizer's step.

    Returns
    -------
    loss : Tensor
        Loss at the weights before the update, detached.
    """
    optimizer.zero_grad()
    losses = []
    if n_sam:
        sam_part = slice(0, n_sam)
        losses.append(loss_of(sam_part))
        losses[-1].backward()
        moved = optimizer.perturbed(freeze_norms=module, grad_scale=sam_share)
        with moved, perturbed_pass():
            loss_of(sam_part).backward()
    if n_sam < n_places:
        losses.append(loss_of(slice(n_sam, n_places)))
        losses[-1].backward()
    if before_update is not None:
        before_update()
    optimizer.descend()
    return sum(loss.detach() for loss in losses)


def set_learning_rate(optimizer, factor: float) -> None:
    """Set every group to ``factor`` times the rate it started from."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
