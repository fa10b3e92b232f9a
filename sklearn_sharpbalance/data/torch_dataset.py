"""Checks of torch Datasets: their length and their items."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["SlicedItems", "check_countable", "first_input", "stack_inputs"]


class SlicedItems(Dataset):
    """Inputs of a skorch ``SliceDataset`` as a Dataset, read item by item.

    Its items are pairs, as of any Dataset, but with a placeholder for the label: who
    slices a Dataset for scikit-learn passes the labels as ``y``.

    Parameters
    ----------
    items : skorch.helper.SliceDataset
    """

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], 0


def check_countable(dataset) -> None:
    """Raise unless a Dataset has a length and items by index."""
    if isinstance(dataset, IterableDataset):
        raise InvalidInputError(
            "Members read the items of a Dataset by index, each in its own order; "
            f"{type(dataset).__name__} is an IterableDataset, which has no indices. "
            "Pass a Dataset with __getitem__ and __len__."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise InvalidInputError(
            "A Dataset must have a length and at least one item; got "
            f"{type(dataset).__name__} of length {getattr(dataset, '__len__', None)}."
        )


def first_input(dataset, labelled: bool) -> Any:
    """Return the input of the first item, a tensor or an array.

    Parameters
    ----------
    dataset : Dataset
    labelled : bool
        Whether items must be pairs (x, label); else they may also be x alone.
    """
    check_countable(dataset)
    item = dataset[0]
    is_pair = isinstance(item, tuple | list)
    if labelled and not (is_pair and len(item) > 1):
        raise InvalidInputError(
            "Each item of a Dataset must be a pair (x, label); "
            f"{type(dataset).__name__}[0] is a {type(item).__name__}. A dataset "
            "without labels cannot be fitted."
        )
    x = item[0] if is_pair and item else item
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise InvalidInputError(
            f"The inputs of a Dataset must be tensors or arrays, got "
            f"{type(x).__name__}. Give it a transform such as "
            "torchvision.transforms.v2.PILToTensor()."
        )
    if torch.is_tensor(x) and x.is_floating_point() and x.element_size() < 2:
        raise InvalidInputError(
            f"The inputs of a Dataset must have a dtype that torch can compute with, "
            f"got {x.dtype}. Convert them to torch.float32."
        )
    return x


def stack_inputs(items: list[np.ndarray]) -> np.ndarray:
    """Stack the inputs of several items into one array."""
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"The inputs of a Dataset must have one shape, got {sorted(shapes)[:3]}. "
            "Give it a transform such as torchvision.transforms.v2.Resize."
        )
    return np.stack(items)
