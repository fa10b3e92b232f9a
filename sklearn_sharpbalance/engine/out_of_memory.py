"""The error if training does not fit into the memory of the device."""

from collections.abc import Callable
from typing import TypeVar

from sklearn_sharpbalance.autodiff import is_out_of_memory
from sklearn_sharpbalance.exceptions import OutOfDeviceMemoryError, SharpBalanceError

__all__ = ["explain_out_of_memory"]

Result = TypeVar("Result")


def explain_out_of_memory(train: Callable[[], Result], net, n_members: int) -> Result:
    """Return ``train()``; raise an error with advice if memory runs out.

    Parameters
    ----------
    train : callable
    net : NeuralNetClassifier
    n_members : int

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from torch import nn
    >>> net = NeuralNetClassifier(nn.Linear, device="cuda:0", batch_size=512)
    >>> def train():
    ...     raise MemoryError("tried to allocate 2 GiB")
    >>> explain_out_of_memory(train, net, 3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    sklearn_sharpbalance.exceptions.OutOfDeviceMemoryError: 3 members ...
    """
    try:
        return train()
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, SharpBalanceError) or not is_out_of_memory(error):
            raise
        failure = str(error).split("\n")[0] or type(error).__name__
    # Raised outside of the except block, because the caught error refers to the tensors
    # of the step.
    raise OutOfDeviceMemoryError(
        f"{n_members} members with batch_size={net.batch_size} do not fit into the "
        f"memory of {net.device} ({failure}). Lower `batch_size`, use a smaller "
        'network, precision="bf16" on a GPU, or engine="skorch", which trains one '
        "member at a time."
    )
