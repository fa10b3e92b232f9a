"""Training data as members see it: arrays that live on the device, or a Dataset."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

__all__ = [
    "DeviceData",
    "TrainingData",
    "as_tensor",
    "n_rows",
    "rows_at_once",
    "take_rows",
]

PASS_BYTES = 256 * 2**20  # of samples that pass a network at once


@dataclass(frozen=True)
class TrainingData:
    """What a fit trains on, after validation.

    Attributes
    ----------
    X : ndarray, dict of ndarray, or Dataset
        Float32 tables, uint8 or float32 pictures (N, C, H, W), a dictionary of
        arrays with one row per sample, or a torch Dataset of (x, y) pairs.
    y : ndarray of shape (N,), dtype int64
        Class codes.
    weight : ndarray of shape (N,), dtype float32, or None
        Sample weights with mean one.
    valid : TrainingData or None
        Held-out part.
    rows : ndarray of shape (N,) or None
        Where these samples stand in what the user passed.
    item_shape : tuple of int or None
        Shape of one item of a Dataset; None for arrays, which tell.
    transform : callable or None
        What training made of every batch, where statistics are to be those of it.
    """

    X: Any
    y: np.ndarray
    weight: np.ndarray | None = None
    valid: "TrainingData | None" = None
    rows: np.ndarray | None = None
    item_shape: tuple[int, ...] | None = None
    transform: Any = None

    def __len__(self) -> int:
        return len(self.y)


class DeviceData:
    """Batches of a :class:`TrainingData` on a device.

    Arrays are moved to the device once and gathered there. Arrays that would take
    more than half of a GPU's free memory stay on the host and stream through pinned
    memory, one batch ahead. Items of a Dataset, pairs (x, y) or bare x, come through a
    DataLoader, which draws nothing from the global RNG; floating ones become float32.

    Parameters
    ----------
    data : TrainingData
    device : str or torch.device
    loader_params : dict, default=None
        Passed to the DataLoader (``num_workers``, ``pin_memory``).
    resident : bool or None, default=None
        Whether arrays live on the device; None decides by the memory that is free.
    """

    def __init__(self, data: TrainingData, device, loader_params=None, resident=None):
        self.device = torch.device(device)
        self.y = torch.as_tensor(data.y, device=self.device)
        self.weight = (
            None
            if data.weight is None
            else torch.as_tensor(data.weight, device=self.device)
        )
        self.loader_params = loader_params or {}
        self.is_dataset = isinstance(data.X, Dataset)
        if self.is_dataset:
            self.X, self.resident = data.X, False
            return
        self.resident = fits_on(data.X, self.device) if resident is None else resident
        self.X = as_tensor(data.X, self.device if self.resident else "cpu")

    def take(self, rows: torch.Tensor):
        """Samples in any shape of rows (indices on the CPU), on the device."""
        if self.resident:
            return take_rows(self.X, to_device(rows, self.device))
        return map_arrays(lambda array: to_device(array[rows], self.device), self.X)

    def iterate(self, indices: np.ndarray) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of each batch, both on the device.

        Parameters
        ----------
        indices : ndarray of shape (n_batches, B)
        """
        rows = torch.as_tensor(indices, device=self.device)
        if self.is_dataset:
            for row, items in zip(rows, self._loader(indices.tolist())):
                x = items[0] if isinstance(items, tuple | list) else items
                yield map_arrays(as_float32, as_tensor(x, self.device)), row
        elif self.resident:
            for row in rows:
                yield take_rows(self.X, row), row
        else:
            ahead = one_ahead(self.take, torch.as_tensor(indices), self.device)
            yield from zip(ahead, rows)

    def _loader(self, batches: list[list[int]]) -> DataLoader:
        """A loader that leaves torch's RNG alone.

        It draws a seed for its workers even where it has none. Seeded as the RNG was,
        its own generator gives workers other draws in every epoch and every member.
        """
        own = torch.Generator().manual_seed(torch.initial_seed())
        params = {"generator": own, **self.loader_params}
        return DataLoader(self.X, batch_sampler=batches, **params)

    def in_order(self, batch_size: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of all samples from the first to the last."""
        n = len(self.y)
        for rows in np.split(np.arange(n), range(batch_size, n, batch_size)):
            yield from self.iterate(rows[None])


def fits_on(X, device) -> bool:
    """Whether arrays take less than half of the memory that the device has free."""
    if device.type != "cuda":
        return True
    arrays = X.values() if isinstance(X, Mapping) else [X]
    free, _ = torch.cuda.mem_get_info(device)
    return sum(array.nbytes for array in arrays) < free / 2


def one_ahead(fetch, batches, device):
    """Fetch each batch on a stream of its own while the one before is worked on."""
    if device.type != "cuda":
        yield from map(fetch, batches)
        return
    stream = torch.cuda.Stream(device)

    def start(batch):
        with torch.cuda.stream(stream):
            return fetch(batch)

    pending = start(batches[0])
    for following in [*batches[1:], None]:
        torch.cuda.current_stream(device).wait_stream(stream)
        current = pending
        # The allocator must know that the batch is used on this stream as well.
        map_arrays(
            lambda x: x.record_stream(torch.cuda.current_stream(device)), current
        )
        pending = None if following is None else start(following)
        yield current


def to_device(values: torch.Tensor, device) -> torch.Tensor:
    """Copy that does not wait for what the device is doing."""
    if torch.device(device).type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def map_arrays(function, X):
    """Apply a function to an array, or to each value of a dictionary of arrays."""
    if isinstance(X, Mapping):
        return {key: function(value) for key, value in X.items()}
    return function(X)


def as_tensor(X, device):
    """Array, or dictionary of arrays, as tensors on a device; no copy on the CPU."""
    if isinstance(X, Mapping):
        return {key: as_tensor(value, device) for key, value in X.items()}
    if isinstance(X, np.ndarray) and not X.flags.writeable:
        # A memory map handed to a worker is read-only, and torch warns of what it
        # cannot forbid. Nobody writes to it: the view is only ever gathered from. A
        # filter of warnings would be one for all threads.
        X = np.asarray(_Unprotected(X))
    return torch.as_tensor(X, device=device)


class _Unprotected:
    """Memory of a read-only array, for numpy to take as if it were not."""

    def __init__(self, array: np.ndarray):
        self.array = array  # which must live as long
        held = array.__array_interface__
        self.__array_interface__ = {**held, "data": (held["data"][0], False)}


def as_float32(x):
    """Floating numbers of any width in the one that members compute in."""
    return x.to(torch.float32) if torch.is_floating_point(x) else x


def take_rows(X, rows):
    """Rows of an array or tensor, or of each value of a dictionary."""
    return map_arrays(lambda array: array[rows], X)


def rows_at_once(data: TrainingData, most: int, block: int = 1) -> int:
    """How many samples pass a network at once without gradients.

    Large ones pass in smaller batches, so that memory does not grow with their size;
    a multiple of ``block``, or one by one.

    Examples
    --------
    >>> labels = np.zeros(9, dtype=np.int64)
    >>> rows_at_once(TrainingData(np.zeros((9, 3, 32, 32)), labels), 2048)
    2048
    >>> pictures = np.broadcast_to(np.uint8(0), (9, 3, 4000, 4000))
    >>> rows_at_once(TrainingData(pictures, labels), 2048)
    1
    """
    if isinstance(data.X, Dataset):
        shapes = [data.item_shape or ()]  # of any size where nobody has looked
    else:
        arrays = data.X.values() if isinstance(data.X, Mapping) else [data.X]
        shapes = [array.shape[1:] for array in arrays]
    n_numbers = sum(map(math.prod, shapes))
    n = min(most, PASS_BYTES // max(4 * n_numbers, 1))  # float32, whatever is stored
    return max(n - n % block, 1)


def n_rows(X) -> int:
    """Number of samples of an array, a dictionary of arrays, or a Dataset."""
    return len(next(iter(X.values()))) if isinstance(X, Mapping) else len(X)
