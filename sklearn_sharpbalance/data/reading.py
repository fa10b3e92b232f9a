"""Items of a Dataset, read once per fit into an array that all members share."""

import math
import shutil
import tempfile
import warnings
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from sklearn_sharpbalance.arrays import empty_on_disk, item_label
from sklearn_sharpbalance.data.inputs import InputFormat, as_array
from sklearn_sharpbalance.data.loading import NamedItems, read_batches, stack_inputs
from sklearn_sharpbalance.datasets import Stream
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.runtime.devices import free_memory
from sklearn_sharpbalance.runtime.rng import global_states

__all__ = ["read_once"]

N_PROBED = 8  # items that are read twice, to see whether they are random
ITEMS_AT_ONCE = 32
FRACTION = 0.5  # of the free memory, or of the free disk
# Settings of a DataLoader that say how workers read items.
OF_WORKERS = (
    "num_workers",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)


def read_once(dataset, fmt: InputFormat, n_buffer, loader_params, *, labelled):
    """Return inputs (N, ...) and labels (N,) of all items of a Dataset or an epoch.

    Labels are None if not ``labelled``. Items are kept in a temporary file if they are
    more than ``n_buffer``, or too large for the memory. Return None if items must be
    read at each use: if they are random, ``n_buffer`` is zero, or the disk is full.
    """
    make = _place(len(dataset), fmt, n_buffer)
    if make is None:
        return None
    if _is_random(dataset):
        warnings.warn(
            "Items of the Dataset are random, so they are read again for each member "
            "and epoch, and faster engines cannot be used. Pass augmentation as "
            "train_transform to read items once, or n_buffer=0 to silence this "
            "warning.",
            SharpBalanceWarning,
            stacklevel=2,
        )
        return None
    return _read(dataset, make, loader_params, labelled)


def _place(n_items, fmt, n_buffer):
    """Return a function that makes the array of all items, or None for no array."""
    is_image = fmt.is_uint8_images or len(fmt.shape) < 3
    if n_buffer == 0 or not fmt.shape or (fmt.dtype == "uint8" and not is_image):
        return None  # there are no arrays of such samples
    shape = (n_items, *fmt.shape)
    n_bytes = math.prod(shape) * _dtype(fmt).itemsize
    fits = n_bytes <= FRACTION * free_memory(torch.device("cpu"))
    if fits if n_buffer is None else n_items <= n_buffer:
        return partial(np.empty, shape, _dtype(fmt))
    on_disk = np.uint8 if fmt.is_uint8_images else np.float32
    has_room = n_bytes <= FRACTION * shutil.disk_usage(tempfile.gettempdir()).free
    return partial(empty_on_disk, shape, on_disk) if has_room else None


def _dtype(fmt):
    """Return the dtype of the array; numbers of a table are rounded later."""
    if fmt.is_uint8_images:
        return np.dtype(np.uint8)
    return np.dtype(np.float64 if len(fmt.shape) < 2 else np.float32)


def _is_random(dataset):
    """Return whether items draw from global generators, or differ if read again."""
    before = global_states()
    first = _probed(dataset)
    if global_states() != before:
        return True
    return not all(map(_equal, first, _probed(dataset)))


def _probed(dataset):
    """Return the inputs of a few items."""
    if isinstance(dataset, Stream):
        dataset.begin(0, None)
        n_items = min(N_PROBED, len(dataset))
        return [_input(pair) for pair in islice(dataset.coded(), n_items)]
    rows = np.unique(np.linspace(0, len(dataset) - 1, N_PROBED).astype(int)).tolist()
    items = NamedItems(dataset)
    return [_input(items[i]) for i in rows]


def _input(item):
    """Return the input of an item, a pair or the input alone, as an array."""
    return as_array(item[0] if isinstance(item, tuple | list) else item)


def _equal(one, other):
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _read(dataset, make, loader_params, labelled):
    """Return inputs and labels of all items."""
    if isinstance(dataset, Stream):
        batches = _epoch(dataset)
    else:
        own = {k: loader_params[k] for k in OF_WORKERS if k in loader_params}
        loader = DataLoader(
            _Columns(dataset, labelled),
            batch_size=ITEMS_AT_ONCE,
            collate_fn=_stack,
            generator=torch.Generator(),
            **own,
        )
        batches = read_batches(loader)
    X = make()
    labels: list[Any] = []
    try:
        for x, y in batches:
            X[len(labels) : len(labels) + len(y)] = x
            labels += y
    except BaseException as error:
        error.add_note(f"{len(labels)} of {len(X)} items of the Dataset had been read.")
        raise
    return X, np.asarray(labels) if labelled else None


def _epoch(stream):
    """Yield inputs and labels of an epoch; each worker would read all of it."""
    stream.begin(0, None)
    pairs = islice(stream.coded(), len(stream))
    while some := list(islice(pairs, ITEMS_AT_ONCE)):
        yield _stack([(_input(pair), stream.classes[pair[1]]) for pair in some])


class _Columns(NamedItems):
    """Pairs of an array and a label; the latter is None if not ``labelled``."""

    def __init__(self, dataset, labelled):
        super().__init__(dataset)
        self.labelled = labelled

    def read(self, i):
        item = self.dataset[i]
        label = item_label(self.dataset, i, item) if self.labelled else None
        return _input(item), label


def _stack(items):
    """Return the inputs of some items as a tensor, and their labels as a list."""
    arrays, labels = zip(*items)
    return torch.from_numpy(stack_inputs(list(arrays))), list(labels)
