"""Process many samples in chunks that are halved when memory runs out."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.exceptions import InvalidInputError, OutOfDeviceMemoryError

__all__ = ["in_chunks", "is_out_of_memory", "map_chunks"]

Result = TypeVar("Result")

# Parts of the messages of the allocators of the CPU, of CUDA and of its libraries.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that an allocation failed.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    >>> is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    False
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(s in text for s in _OUT_OF_MEMORY)


def map_chunks(
    fn: Callable[[slice], Result],
    n: int,
    chunk_size: int,
    *,
    setting: str = "chunk_size",
) -> Iterator[Result]:
    """Yield ``fn(slice)`` for slices that cover ``range(n)`` in order.

    A chunk that does not fit in memory is halved and tried again; the following chunks
    have the smaller size too.

    Parameters
    ----------
    fn : callable of slice
        Must have no side effects before it returns, since it is called again after a
        failure.
    n : int
        Number of samples.
    chunk_size : int
        Number of samples in the first chunk.
    setting : str, default="chunk_size"
        Name of the user's parameter for ``chunk_size``, for error messages.

    Yields
    ------
    result
        The result of ``fn`` for the next slice.

    Raises
    ------
    OutOfDeviceMemoryError
        If a single sample does not fit.

    Examples
    --------
    >>> list(map_chunks(lambda rows: (rows.start, rows.stop), 5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    check_numbers(POSITIVE_INTEGER, **{setting: chunk_size})
    start, size = 0, int(chunk_size)
    while start < n:
        stop = min(start + size, n)
        result, failure = _attempt(fn, slice(start, stop))
        if failure is None:
            yield result
            start = stop
            continue
        if stop - start == 1:
            raise OutOfDeviceMemoryError(
                f"The device is out of memory even with `{setting}` lowered from "
                f"{chunk_size} to 1 ({failure}). Free memory on the device, use a "
                f"smaller network or smaller inputs, or work on the CPU."
            )
        size = (stop - start) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def in_chunks(
    fn: Callable[[slice], torch.Tensor],
    n: int,
    chunk_size: int,
    *,
    setting: str = "chunk_size",
) -> torch.Tensor:
    """Concatenate ``fn(slice)`` over slices that cover ``range(n)``.

    See :func:`map_chunks` for the parameters and for the halving of chunks.

    Returns
    -------
    tensor of shape (n, ...)
        The results in the order of the samples.

    Examples
    --------
    >>> x = torch.arange(5)
    >>> in_chunks(lambda rows: x[rows] * 2, 5, chunk_size=2)
    tensor([0, 2, 4, 6, 8])
    """
    if n == 0:
        raise InvalidInputError("There are no samples to work on: X is empty.")
    return torch.cat(list(map_chunks(fn, n, chunk_size, setting=setting)))


def _attempt(fn, rows):
    """Return ``(result, None)``, or ``(None, message)`` if memory runs out.

    Only the message is returned: the traceback references the tensors that filled the
    memory, and with it the next attempt would fail too.
    """
    try:
        return fn(rows), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None, str(error).split("\n")[0] or type(error).__name__
