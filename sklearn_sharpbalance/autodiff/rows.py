"""Samples of any kind that a net takes, handed out by slices on one device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["Rows", "map_tensors"]


class Rows:
    """Inputs and targets that can be sliced, whatever holds them.

    Parameters
    ----------
    X : array, tensor, dict or sequence of those, or torch Dataset
        The inputs; the first axis counts samples. A dict stands for keyword
        arguments of the module. A Dataset gives pairs ``(x, y)``.
    y : array or tensor of shape (N,), default=None
        The targets. None takes them from a Dataset.
    device : str or torch.device, default="cpu"
        Where the slices are put.

    Examples
    --------
    >>> rows = Rows(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]))
    >>> len(rows)
    3
    >>> rows[1:2]
    (tensor([[2., 3.]], dtype=torch.float64), tensor([1]))
    """

    def __init__(self, X, y=None, device="cpu"):
        self.X = X
        self.y = y
        self.device = torch.device(device)
        self._n = _length(X)
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
        """``(x, y)`` of one slice, as tensors on the device."""
        x, y = self.X, self.y
        if isinstance(x, Dataset):
            x, targets, *_ = _collate(x, range(self._n)[rows])
            y = targets if y is None else y[rows]
        else:
            x, y = map_tensors(lambda part: part[rows], (x, y))
        return map_tensors(lambda part: _to_tensor(part, self.device), (x, y))


def _length(X):
    if isinstance(X, (Mapping, list, tuple)):
        parts = X.values() if isinstance(X, Mapping) else X
        lengths = {len(part) for part in parts}
        if len(lengths) != 1:
            raise InvalidInputError(
                "The parts of `X` must have one and the same number of samples. Got "
                f"{sorted(lengths)}."
            )
        return lengths.pop()
    return len(X)


def _collate(dataset, indices):
    if hasattr(dataset, "__getitems__"):  # one call for many samples
        return default_collate(dataset.__getitems__(list(indices)))
    return default_collate([dataset[i] for i in indices])


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


def _to_tensor(X, device):
    if isinstance(X, np.ndarray) and not X.flags.writeable:
        X = X.copy()  # torch warns about memory that it must not write to
    return torch.as_tensor(X).to(device, non_blocking=True)
