"""Slices of the inputs that a net takes, in chunks that fit in memory."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from sklearn_sharpbalance._validation import POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.arrays import to_tensor
from sklearn_sharpbalance.exceptions import InvalidInputError, OutOfDeviceMemoryError
from sklearn_sharpbalance.runtime.devices import contiguous_on_cpu

EMPTY = "There are no samples to work on: X is empty."
# Parts of the messages of the allocators of the CPU, of CUDA and of its libraries.
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
)

Result = TypeVar("Result")


class Rows:
    """Inputs and targets of any supported type, which can be sliced.

    Parameters
    ----------
    X : array, tensor, dict or sequence of those, or torch Dataset
        The inputs, with one sample per entry of the first axis. A dict contains
        keyword arguments of the module. The items of a Dataset are pairs ``(x, y)``
        or, if ``y`` is passed, may be inputs only.
    y : array or tensor of shape (N,), default=None
        The targets. None uses those of a Dataset.
    device : str or torch.device, default="cpu"
        Device of the slices.

    Examples
    --------
    >>> rows = Rows(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]))
    >>> rows[1:2]
    (tensor([[2., 3.]], dtype=torch.float64), tensor([1]))
    """

    def __init__(self, X, y=None, device="cpu"):
        self.X = X
        # `map_tensors` would map the entries of a list, and torch reads no pandas.
        self.y = y if y is None or isinstance(y, torch.Tensor) else np.asarray(y)
        self.device = torch.device(device)
        self._n = _length(X)
        if self._n == 0:
            raise InvalidInputError(EMPTY)
        if y is None and not isinstance(X, Dataset):
            raise InvalidInputError("`y` may be None only if `X` is a torch Dataset.")
        if y is not None and len(y) != self._n:
            raise InvalidInputError(
                f"`X` has {self._n} samples but `y` has {len(y)}. Pass one target per "
                "sample."
            )

    def __len__(self):
        return self._n

    def __getitem__(self, rows):
        """Return ``(x, y)`` of one slice, as tensors on the device."""
        if isinstance(self.X, Dataset):
            x, y = self._items(rows)
        else:
            x, y = map_tensors(lambda part: part[rows], (self.X, self.y))
            # Slices are views, and a module may change its input in place.
            x = map_tensors(_copy, x)
        return map_tensors(self._moved, (x, y))

    def _items(self, rows):
        """Return inputs and labels of some items of a Dataset."""
        indices = list(range(self._n)[rows])
        if hasattr(self.X, "__getitems__"):  # one call for many samples
            batch = default_collate(self.X.__getitems__(indices))
        else:
            batch = default_collate([self.X[i] for i in indices])
        pair = isinstance(batch, (list, tuple))
        x = batch[0] if pair else batch
        if self.y is not None:
            return x, self.y[rows]
        if not pair or len(batch) < 2:
            raise InvalidInputError(
                f"The items of {type(self.X).__name__} have no labels: they are not "
                "pairs (x, label). Pass the labels as y."
            )
        return x, batch[1]

    def _moved(self, part):
        """Move a part of a slice to the device, detached from any graph."""
        return contiguous_on_cpu(to_tensor(part, self.device).detach())


def _length(X):
    if not isinstance(X, (Mapping, list, tuple)):
        return len(X)
    lengths = {len(part) for part in (X.values() if isinstance(X, Mapping) else X)}
    if len(lengths) != 1:
        raise InvalidInputError(
            "All parts of `X` must have the same number of samples. Got "
            f"{sorted(lengths)}."
        )
    return lengths.pop()


def _copy(part):
    if isinstance(part, torch.Tensor):
        return part.clone(memory_format=torch.contiguous_format)
    return np.array(part, order="C")


def map_tensors(fn, X):
    """Apply ``fn`` to every array or tensor of a dict or sequence, at any depth.

    Examples
    --------
    >>> map_tensors(len, {"a": torch.zeros(2), "b": [torch.zeros(3)]})
    {'a': 2, 'b': [3]}
    """
    if isinstance(X, Mapping):
        return {key: map_tensors(fn, part) for key, part in X.items()}
    if isinstance(X, (list, tuple)):
        return type(X)(map_tensors(fn, part) for part in X)
    return fn(X)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that an allocation failed.

    Examples
    --------
    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    True
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(s in text for s in OUT_OF_MEMORY)


def map_chunks(
    fn: Callable[[slice], Result],
    n: int,
    chunk_size: int,
    *,
    setting: str = "chunk_size",
) -> Iterator[Result]:
    """Yield ``fn(slice)`` for slices that cover ``range(n)`` in order.

    A chunk that does not fit in memory is halved and tried again; the following chunks
    have the smaller size too. If a single sample does not fit, raise
    OutOfDeviceMemoryError.

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
    """Concatenate the results of :func:`map_chunks`, which has the same parameters.

    Examples
    --------
    >>> x = torch.arange(5)
    >>> in_chunks(lambda rows: x[rows] * 2, 5, chunk_size=2)
    tensor([0, 2, 4, 6, 8])
    """
    if n == 0:
        raise InvalidInputError(EMPTY)
    parts = map_chunks(fn, n, chunk_size, setting=setting)
    first = next(parts)
    # One tensor from the start: small results between the freed memory of large chunks
    # would keep it from being used again.
    whole, start = first.new_empty((n, *first.shape[1:])), 0
    for part in chain([first], parts):
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


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
