"""Validated training data, and batches of it on a device."""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
)

from sklearn_sharpbalance.data.loading import (
    NamedItems,
    collate_inputs,
    collate_pairs,
    read_batches,
)
from sklearn_sharpbalance.datasets import Epoch, Pairs, Stream, needs_pairs
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "ArrayRows",
    "DeviceData",
    "SlicedItems",
    "TrainingData",
    "as_pairs",
    "as_tensor",
    "check_countable",
    "check_input",
    "is_dataset",
    "is_on_disk",
    "n_rows",
    "near_device",
    "rows_at_once",
    "rows_of",
    "take_rows",
]

MAX_BATCH_BYTES = 256 * 2**20  # of samples in a forward pass without gradients
BLOCK_BYTES = 16 * 2**20  # that are copied from a disk to a GPU at once


@dataclass(frozen=True)
class TrainingData:
    """Samples, labels and weights of a fit, after validation.

    Attributes
    ----------
    X : ndarray, ArrayRows, dict of these, or Dataset
        Float32 tables, uint8 or float32 images (N, C, H, W), a dictionary of
        arrays with one row per sample, or a torch Dataset of (x, y) pairs. Memory maps
        may have any strides.
    y : ndarray of shape (N,), dtype int64
        Class codes.
    weight : ndarray of shape (N,), dtype float32, or None
        Sample weights with mean one.
    valid : TrainingData or None
        Validation samples.
    rows : ndarray of shape (N,) or None
        Indices of these samples in the data that the user passed.
    item_shape : tuple of int or None
        Shape of one item of a Dataset; None for arrays.
    transform : callable or None
        Augmentation of each training batch, if statistics are to be computed with it.
    """

    X: Any
    y: np.ndarray
    weight: np.ndarray | None = None
    valid: "TrainingData | None" = None
    rows: np.ndarray | None = None
    item_shape: tuple[int, ...] | None = None
    transform: Any = None

    @classmethod
    def unlabeled(
        cls, X: Any, item_shape: tuple[int, ...] | None = None
    ) -> "TrainingData":
        """Return samples without labels; ``y`` is a placeholder of zeros."""
        return cls(X, np.zeros(n_rows(X), dtype=np.int64), item_shape=item_shape)

    def __len__(self) -> int:
        return len(self.y)


class ArrayRows:
    """Some rows of an array on disk, which are read when they are indexed."""

    def __init__(self, array, rows):
        self.array, self.rows = array, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        """Return rows; further entries of the key are for the other axes."""
        rows, *others = key if isinstance(key, tuple) else (key,)
        return self.array[(self.rows[rows], *others)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of these rows."""
        return len(self.rows), *self.array.shape[1:]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in memory."""
        return self.size * self.array.itemsize

    def reshape(self, n_rows: int, *shape: int) -> "ArrayRows":
        """Return the same rows with samples of another shape."""
        return ArrayRows(self.array.reshape(len(self.array), *shape), self.rows)


class DeviceData:
    """Batches of a :class:`TrainingData` on a device.

    Arrays are moved to the device once and indexed there. Memory maps stay on disk if
    the device is a CPU. Arrays of more than half of a GPU's free memory stay on the
    host; their batches are copied through pinned memory, one batch ahead. Items of a
    Dataset, pairs (x, y) or x alone, are read by a DataLoader, which does not draw from
    the global generators; floating point inputs become float32.

    Parameters
    ----------
    data : TrainingData
    device : str or torch.device
    loader_params : dict, default=None
        Passed to the DataLoader (``num_workers``, ``pin_memory``).
    resident : bool or None, default=None
        Whether arrays are stored on the device; None decides by the free memory.
    """

    def __init__(self, data: TrainingData, device, loader_params=None, resident=None):
        self.device = torch.device(device)
        self.y = torch.as_tensor(data.y, device=self.device)
        self.weight = None
        if data.weight is not None:
            self.weight = torch.as_tensor(data.weight, device=self.device)
        self.loader_params = loader_params or {}
        self.is_dataset = isinstance(data.X, Dataset)
        self.is_stream = isinstance(data.X, Stream)
        if self.is_dataset:
            self.X, self.resident = data.X, False
            if self.is_stream:  # labels are known when items are read
                self.y = self.y.clone()
            return
        if resident is None:
            self.X, self.resident = near_device(data.X, self.device)
        else:
            self.X = as_tensor(data.X, self.device if resident else "cpu")
            self.resident = resident

    def take(self, rows: torch.Tensor):
        """Return samples on the device, given their indices on the CPU in any shape."""
        if self.resident:
            return _batch(self.X, to_device(rows, self.device))
        batch = _batch(self.X, rows)
        return map_arrays(lambda part: to_device(part, self.device), batch)

    def iterate(self, indices: np.ndarray) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of each batch of indices (n_batches, B), on the device."""
        rows = torch.as_tensor(indices, device=self.device)
        if self.is_dataset:
            for row, items in zip(rows, self._batches(indices.tolist())):
                x = items[0] if isinstance(items, tuple | list) else items
                if self.is_stream:
                    self.y[row] = items[1].to(self.device)
                yield map_arrays(as_float32, as_tensor(x, self.device)), row
        elif self.resident:
            for row in rows:
                yield _batch(self.X, row), row
        else:
            ahead = one_ahead(self.take, torch.as_tensor(indices), self.device)
            yield from zip(ahead, rows)

    def _batches(self, batches: list[list[int]]) -> Iterator[Any]:
        """Yield batches of a loader that does not draw from the global generator.

        A DataLoader draws a seed for its workers, even if it has no workers. It gets a
        generator with the seed of the global one, which differs for every epoch and
        member, and so do the draws of its workers.
        """
        generator = torch.Generator().manual_seed(torch.initial_seed())
        own = {"generator": generator, "collate_fn": collate_inputs}
        params: dict[str, Any] = own | self.loader_params
        if self.is_stream:
            params |= {"collate_fn": collate_pairs, "batch_size": len(batches[0])}
            return read_batches(DataLoader(Epoch(self.X), **params))
        items = NamedItems(self.X)
        return read_batches(DataLoader(items, batch_sampler=batches, **params))

    def in_order(self, batch_size: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of all samples in order; the last batch may be smaller."""
        n = len(self.y)
        for rows in np.split(np.arange(n), range(batch_size, n, batch_size)):
            yield from self.iterate(rows[None])


def near_device(X, device: torch.device) -> tuple[Any, bool]:
    """Return arrays as tensors, and whether they are on the device.

    Arrays of more than half of a GPU's free memory stay on the host. Those who read the
    tensors do not change them.
    """
    if device.type != "cuda":
        return as_tensor(X, device), True
    arrays = X.values() if isinstance(X, Mapping) else [X]
    size, (free, _) = sum(a.nbytes for a in arrays), torch.cuda.mem_get_info(device)
    if size >= free / 2:
        return as_tensor(X, "cpu"), False
    return as_tensor(X, device), True


def one_ahead(fetch, batches, device):
    """Yield batches; fetch the next one on another CUDA stream in the meantime."""
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
        # Tell the allocator that the batch is used on this stream as well.
        map_arrays(
            lambda x: x.record_stream(torch.cuda.current_stream(device)), current
        )
        pending = None if following is None else start(following)
        yield current


def to_device(values: torch.Tensor, device) -> torch.Tensor:
    """Copy to a device without waiting for its computations."""
    if torch.device(device).type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def map_arrays(function, X):
    """Apply a function to an array, or to each value of a dictionary of arrays."""
    if isinstance(X, Mapping):
        return {key: function(value) for key, value in X.items()}
    return function(X)


def as_tensor(X, device):
    """Convert an array or a dictionary of arrays to tensors; no copy on the CPU."""
    if isinstance(X, Mapping):
        return {key: as_tensor(value, device) for key, value in X.items()}
    if is_on_disk(X) and torch.device(device).type != "cpu":
        return _copy_from_disk(X, device)
    if isinstance(X, ArrayRows):
        return ArrayRows(as_tensor(X.array, device), torch.as_tensor(X.rows))
    if isinstance(X, np.ndarray) and not X.flags.writeable:
        # torch warns about read-only arrays, such as memory maps in a worker. This one
        # is only read. A warning filter would apply to all threads.
        X = np.asarray(_WritableView(X))
    return torch.as_tensor(X, device=device)


def _copy_from_disk(X, device):
    """Copy an array on disk to a device, in blocks for which the host has memory."""
    first = as_tensor(X[:1], "cpu")
    tensor = torch.empty(X.shape, dtype=first.dtype, device=device)
    n_rows = max(1, BLOCK_BYTES // max(1, first.nbytes))
    for start in range(0, len(X), n_rows):
        rows = slice(start, start + n_rows)
        tensor[rows] = as_tensor(X[rows], "cpu").to(device)
    return tensor


def is_on_disk(X) -> bool:
    """Whether values are read from a memory map; False if torch cannot read its view.

    Examples
    --------
    >>> is_on_disk(np.zeros((3, 2)))
    False
    """
    X = X.array if isinstance(X, ArrayRows) else X
    if not isinstance(X, np.ndarray) or min(X.strides, default=0) < 0:
        return False
    while isinstance(X, np.ndarray):
        X = X.base
    return isinstance(X, mmap.mmap)


class _WritableView:
    """The memory of a read-only array, declared as writable to numpy."""

    def __init__(self, array: np.ndarray):
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        address, _ = interface["data"]
        self.__array_interface__ = {**interface, "data": (address, False)}


def as_float32(x):
    """Convert floating point tensors to float32, in which members compute."""
    return x.to(torch.float32) if torch.is_floating_point(x) else x


def take_rows(X, rows):
    """Return rows of an array or tensor, or of each value of a dictionary."""
    return map_arrays(lambda array: array[rows], X)


def _batch(X, rows):
    """Return rows of tensors in C order, also of a memory map with other strides."""
    return map_arrays(lambda tensor: tensor[rows].contiguous(), X)


def rows_of(data: TrainingData, rows: np.ndarray) -> TrainingData:
    """Return some samples of training data; those of a memory map stay on disk."""

    def select(array):
        if isinstance(array, ArrayRows):
            return ArrayRows(array.array, array.rows[rows])
        return ArrayRows(array, rows) if is_on_disk(array) else array[rows]

    if isinstance(data.X, Dataset):
        X = Subset(data.X, rows.tolist())
    else:
        X = map_arrays(select, data.X)
    weight = None if data.weight is None else data.weight[rows]
    shape = data.item_shape
    return TrainingData(X, data.y[rows], weight, rows=rows, item_shape=shape)


def rows_at_once(data: TrainingData, most: int, block: int = 1) -> int:
    """Return the batch size of forward passes without gradients.

    It is smaller for large samples, to bound the memory: at most ``most``, and a
    multiple of ``block`` or one.

    Examples
    --------
    >>> labels = np.zeros(9, dtype=np.int64)
    >>> rows_at_once(TrainingData(np.zeros((9, 3, 32, 32)), labels), 2048)
    2048
    >>> images = np.broadcast_to(np.uint8(0), (9, 3, 4000, 4000))
    >>> rows_at_once(TrainingData(images, labels), 2048)
    1
    """
    if isinstance(data.X, Dataset):
        shapes = [data.item_shape or ()]  # an unknown shape is not bounded
    else:
        arrays = data.X.values() if isinstance(data.X, Mapping) else [data.X]
        shapes = [array.shape[1:] for array in arrays]
    sample_bytes = 4 * sum(map(math.prod, shapes))  # in float32
    n = min(most, MAX_BATCH_BYTES // max(sample_bytes, 1))
    return max(n - n % block, 1)


def n_rows(X) -> int:
    """Return the number of samples of an array, a dictionary or a Dataset."""
    return len(next(iter(X.values()))) if isinstance(X, Mapping) else len(X)


class SlicedItems(Dataset):
    """Inputs of a skorch ``SliceDataset`` as a Dataset, read item by item.

    Its items are pairs, as of any Dataset, but with a placeholder for the label: who
    slices a Dataset for scikit-learn passes the labels as ``y``.
    """

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], 0


def is_dataset(X) -> bool:
    """Return whether X has a length and items by index, but is no array or list."""
    if isinstance(X, Dataset):
        return True
    arrays = ("__array__", "__array_namespace__", "__dlpack__", "__dataframe__")
    if isinstance(X, Sequence | Mapping) or any(hasattr(X, name) for name in arrays):
        return False
    return hasattr(X, "__len__") and hasattr(X, "__getitem__") and not issparse(X)


def check_countable(dataset) -> None:
    """Raise unless a Dataset has a length and items by index."""
    by_index = getattr(type(dataset), "__getitem__", None) is not Dataset.__getitem__
    if isinstance(dataset, IterableDataset) and not by_index:
        raise InvalidInputError(
            "Members read the items of a Dataset by index, each in its own order; "
            f"{type(dataset).__name__} is an IterableDataset, which has no indices. "
            "Pass sklearn_sharpbalance.datasets.stream(dataset, classes, length), or a "
            "Dataset with __getitem__ and __len__."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise InvalidInputError(
            "A Dataset must have a length and at least one item; got "
            f"{type(dataset).__name__} of length {getattr(dataset, '__len__', None)}."
        )


def as_pairs(dataset) -> tuple[Dataset, Any]:
    """Return a Dataset whose items are pairs or samples, and its first item.

    See :func:`~sklearn_sharpbalance.datasets.pairs`.
    """
    check_countable(dataset)
    item = NamedItems(dataset)[0]
    if not needs_pairs(dataset, item):
        return dataset, item
    dataset = Pairs(dataset)
    return dataset, dataset.pair(item)


def check_input(dataset, item, labelled: bool) -> Any:
    """Return the input of the first item, a tensor or an array.

    If not ``labelled``, items may also be x alone, not a pair (x, label).
    """
    is_pair = isinstance(item, tuple | list)
    if labelled and not (is_pair and len(item) > 1):
        raise InvalidInputError(
            "Each item of a Dataset must be a pair (x, label); "
            f"{_name(dataset)}[0] is a {type(item).__name__}. A dataset "
            "without labels cannot be fitted. With labels of its own pass "
            "sklearn_sharpbalance.datasets.pairs(dataset, y=labels)."
        )
    x = item[0] if is_pair and item else item
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise InvalidInputError(
            "The inputs of a Dataset must be tensors or arrays, or images of Pillow, "
            f"got {type(x).__name__}. Pass sklearn_sharpbalance.datasets.pairs("
            "dataset, transform=...) with a function that returns one of them."
        )
    if torch.is_tensor(x) and x.is_floating_point() and x.element_size() < 2:
        raise InvalidInputError(
            f"The inputs of a Dataset must have a dtype that torch can compute with, "
            f"got {x.dtype}. Convert them to torch.float32."
        )
    return x


def _name(dataset) -> str:
    source = dataset.dataset if isinstance(dataset, Pairs) else dataset
    return type(source).__name__
