"""The loss of each sample, for any net whose criterion can leave it unreduced."""

from contextlib import contextmanager

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["one_per_sample", "sample_losses", "unreduced"]


def one_per_sample(losses, y):
    """The losses, if a function of the user has left them unreduced, (B,).

    A mean over the batch has gradients that depend on the size of a chunk.
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
    """Let ``criterion`` return one loss per sample inside the ``with`` block."""
    if not hasattr(criterion, "reduction"):
        raise InvalidInputError(
            f"The criterion {type(criterion).__name__} has no attribute 'reduction', "
            "so it cannot give one loss per sample. Use a torch.nn loss such as "
            "CrossEntropyLoss, or give yours a `reduction` that understands 'none'."
        )
    before = criterion.reduction
    try:
        criterion.reduction = "none"
        yield criterion
    finally:
        criterion.reduction = before


def sample_losses(net, y_pred, y_true):
    """Loss of each sample, of shape (B,), through the net's own ``get_loss``.

    Going through ``get_loss`` keeps what skorch adds to the criterion (the
    logarithm before ``NLLLoss``) and what a subclass overrides.
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
