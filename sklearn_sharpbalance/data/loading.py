"""Items of a Dataset, read by torch's DataLoader in batches."""

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from sklearn_sharpbalance.datasets import Pairs, Stream
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.runtime.torch_internals import stop_workers

__all__ = [
    "NamedItems",
    "collate_inputs",
    "collate_pairs",
    "read_batches",
    "stack_inputs",
]

PIPE_ERRORS = ConnectionError, EOFError, FileNotFoundError
DIED = (
    "A process that read items died: its memory was full, or a decoder crashed. Use "
    "fewer workers, or num_workers=0 to read in this process."
)


def read_batches(loader: DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader; its workers end with them, also after an error."""
    batches = iter(loader)
    try:
        yield from batches
    except PIPE_ERRORS as error:  # before torch sees that a worker died
        if loader.num_workers == 0 or str(error).startswith("Caught"):
            raise  # of an item
        raise RuntimeError(f"DataLoader worker exited. {DIED}") from error
    except RuntimeError as error:
        if str(error).startswith("DataLoader worker"):  # and no error inside of one
            error.add_note(DIED)
        raise
    finally:
        stop_workers(batches)


class NamedItems(Dataset):
    """Items of a Dataset; an error tells which one was being read."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        try:
            return self.read(i)
        except Exception as error:
            dataset, row = _given(self.dataset, i)
            if isinstance(error, IndexError) and row >= len(dataset):
                raise InvalidInputError(
                    f"The Dataset has no item {row}: it has become shorter, and has "
                    f"{len(dataset)} items. It must keep them while it is in use."
                ) from error
            if not isinstance(dataset, Stream):
                file = _file(dataset, row)
                error.add_note(f"Item {row} of the Dataset was being read{file}.")
            raise

    def read(self, i):
        """Return an item."""
        return self.dataset[i]


def _given(dataset, i) -> tuple[Any, int]:
    """Return the Dataset around which others were put, and the index of an item."""
    while isinstance(dataset, Pairs | Subset) and not isinstance(dataset, Stream):
        i = dataset.indices[i] if isinstance(dataset, Subset) else i
        dataset = dataset.dataset
    return dataset, i


def _file(dataset, i) -> str:
    """Return the path of an item of a list of paths, or of torchvision's folders."""
    rows = getattr(dataset, "samples", dataset)
    item = rows[i] if isinstance(rows, list) else None
    path = item[0] if isinstance(item, tuple) else item
    return f" from {path}" if isinstance(path, str | PathLike) else ""


def collate_inputs(items: list) -> Any:
    """Return a batch of the inputs of items; labels are known since the fit began."""
    inputs = [item[0] if isinstance(item, tuple | list) else item for item in items]
    _check_shapes({tuple(x.shape) for x in inputs})
    return default_collate(inputs)


def collate_pairs(items: list) -> tuple[Any, torch.Tensor]:
    """Return a batch of inputs, and their class codes."""
    return collate_inputs(items), torch.tensor([code for _, code in items])


def _check_shapes(shapes) -> None:
    if len(shapes) > 1:
        raise InvalidInputError(
            f"The inputs of a Dataset must have one shape, got {sorted(shapes)[:3]}. "
            "Give it a transform such as torchvision.transforms.v2.Resize."
        )


def stack_inputs(items: list[np.ndarray]) -> np.ndarray:
    """Stack the inputs of several items into one array."""
    _check_shapes({item.shape for item in items})
    return np.stack(items)
