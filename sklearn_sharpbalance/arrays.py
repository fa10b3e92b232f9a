"""Arrays from tensors, tensors from arrays, and labels from torch Datasets."""

import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["dataset_labels", "to_array", "to_tensor"]

COMPARED_ITEMS = 32  # compared with the labels in a Dataset's attributes


def to_tensor(X, device="cpu"):
    """Return X, an array or tensor, as a tensor on a device.

    Examples
    --------
    >>> to_tensor(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if isinstance(X, np.ndarray):
        backwards = any(step < 0 for step in X.strides)
        if backwards or not X.flags.writeable:
            # torch accepts no negative strides, and warns about read-only memory.
            X = X.copy()
    return torch.as_tensor(X).to(device, non_blocking=True)


def to_array(values):
    """Return values, a tensor of any device or anything else, as an array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    return np.asarray(values)


def dataset_labels(dataset):
    """Return the labels of a Dataset, from its attributes or else from every item.

    The attributes are used only if they agree with the labels of a few items.

    Parameters
    ----------
    dataset : Dataset
        It may have attributes ``targets``, ``labels`` or ``tensors``, or be a Subset.

    Returns
    -------
    labels : ndarray of shape (N,)

    Examples
    --------
    >>> from torch.utils.data import Subset, TensorDataset
    >>> pairs = TensorDataset(torch.zeros(3, 2), torch.tensor([4, 5, 6]))
    >>> dataset_labels(Subset(pairs, [2, 0]))
    array([6, 4])
    """
    labels = _attribute_labels(dataset)
    if labels is not None and _items_agree(dataset, labels):
        return labels
    return np.asarray([item_label(dataset, i, dataset[i]) for i in range(len(dataset))])


def _attribute_labels(dataset):
    """Return the labels without reading items; None if the attributes have none."""
    for name in ("targets", "labels"):
        labels = getattr(dataset, name, None)
        if labels is not None and len(labels) == len(dataset):
            is_plain = getattr(dataset, "target_transform", None) is None
            return to_array(labels) if is_plain else None
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) > 1:
        return to_array(tensors[1])
    parent = getattr(dataset, "dataset", None)
    indices = getattr(dataset, "indices", None)
    if parent is not None and indices is None:
        return _attribute_labels(parent)  # the same items in another form
    if parent is not None:
        labels = _attribute_labels(parent)
        return None if labels is None else labels[np.asarray(indices)]
    return None


def _items_agree(dataset, labels):
    """Return whether items have these labels, by one item of each class."""
    if labels.ndim != 1:
        return False
    first = {label: i for i, label in reversed(list(enumerate(labels.tolist())))}
    rows = list(first.values())
    for i in rows[:: 1 + len(rows) // COMPARED_ITEMS]:
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) < 2:
            return True  # items are inputs only: there is nothing to compare
        if not np.array_equal(to_array(item[1]).reshape(-1), labels[i : i + 1]):
            return False
    return True


def item_label(dataset, i, item):
    """Return the label of item i of a Dataset; raise if it is not one class."""
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InvalidInputError(
            f"The items of {_name(dataset)} have no labels: item {i} is a "
            f"{type(item).__name__}, not a pair (x, label). Pass the labels as y."
        )
    label = to_array(item[1])
    if label.shape not in ((), (1,)):
        raise InvalidInputError(
            "Each label of a Dataset must be one class, but "
            f"{_name(dataset)} has labels of shape {label.shape}. Give it a "
            "target_transform, or pass the classes as y."
        )
    return label.item()


def _name(dataset):
    """Return the class of a Dataset, without those that were put around it."""
    return type(getattr(dataset, "dataset", dataset)).__name__


def empty_on_disk(shape, dtype):
    """Return an array without values in a temporary file, which is deleted with it."""
    file, path = tempfile.mkstemp(prefix="sharpbalance-")
    os.close(file)
    array = np.memmap(path, dtype=dtype, mode="w+", shape=shape)
    weakref.finalize(array, Path(path).unlink, missing_ok=True)
    return array
