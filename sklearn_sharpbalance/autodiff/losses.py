"""The loss of each sample, for nets whose criterion supports reduction="none"."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["LossModule", "one_per_sample", "sample_losses", "unreduced"]


def one_per_sample(losses, y):
    """Return the losses, (B,); raise if the user's function has reduced them.

    The gradient of a mean over the batch would depend on the size of a chunk.
    """
    if losses.shape != (len(y),):
        raise InvalidInputError(
            f"The loss function returned a tensor of shape {tuple(losses.shape)} for "
            f"{len(y)} samples. It must return one loss per sample, of shape "
            f"({len(y)},), as the losses of torch do with reduction='none'."
        )
    return losses


@contextmanager
def unreduced(criterion):
    """Make ``criterion`` return one loss per sample inside the ``with`` block."""
    if not hasattr(criterion, "reduction"):
        raise InvalidInputError(
            f"The criterion {type(criterion).__name__} has no attribute 'reduction', "
            "so it cannot give one loss per sample. Use a torch.nn loss such as "
            "CrossEntropyLoss, or add a `reduction` to yours that supports 'none'."
        )
    before = criterion.reduction
    try:
        criterion.reduction = "none"
        yield criterion
    finally:
        criterion.reduction = before


def sample_losses(net, y_pred, y_true):
    """Return the loss of each sample, (B,), by the net's own ``get_loss``.

    ``get_loss`` includes what skorch adds to the criterion (the logarithm before
    ``NLLLoss``) and the overrides of a subclass.
    """
    with unreduced(net.criterion_):
        losses = net.get_loss(y_pred, y_true, training=True)  # (B,) or (B, ...)
    if losses.ndim == 0 or len(losses) != len(y_true):
        raise InvalidInputError(
            f"The criterion {type(net.criterion_).__name__} returned a loss of shape "
            f"{tuple(losses.shape)} for {len(y_true)} samples with reduction='none'. "
            "It must return one loss per sample."
        )
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses  # (B,)


class LossModule(nn.Module):
    """Module whose output is the losses, for ``torch.func.functional_call``.

    The losses, not only the outputs, depend on the swapped parameters: they may contain
    a penalty on the weights.

    Parameters
    ----------
    module : Module
        Its parameters have the prefix ``"module."``.
    losses : callable
        ``losses(x, y)`` runs the module.
    """

    def __init__(self, module: nn.Module, losses: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.module = module
        self.losses = losses

    def forward(self, x, y):
        return self.losses(x, y)
