"""A torch Dataset at the border: what its items must be, told by one clear error."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_countable", "first_input", "stack_inputs"]


def check_countable(dataset) -> None:
    """Raise unless the items of a Dataset have numbers, from 0 to its length."""
    if isinstance(dataset, IterableDataset):
        raise InvalidInputError(
            "Members read the items of a Dataset by their numbers, in an order of "
            f"their own; {type(dataset).__name__} is an IterableDataset, which has "
            "none. Pass a Dataset with __getitem__ and __len__."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise InvalidInputError(
            "A Dataset must have a length and at least one item; got "
            f"{type(dataset).__name__} of length {getattr(dataset, '__len__', None)}."
        )


def first_input(dataset, labelled: bool) -> Any:
    """Input of the first item, a tensor or an array.

    Parameters
    ----------
    dataset : Dataset
    labelled : bool
        Whether items must be pairs (x, label), or may be bare.
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
            f"The inputs of a Dataset must be numbers that torch computes with, got "
            f"{x.dtype}. Let it return them as torch.float32."
        )
    return x


def stack_inputs(items: list[np.ndarray]) -> np.ndarray:
    """Inputs of several items as one array."""
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"The inputs of a Dataset must have one shape, got {sorted(shapes)[:3]}. "
            "Give it a transform such as torchvision.transforms.v2.Resize."
        )
    return np.stack(items)
