"""Training data as members see it: arrays that live on the device, or a Dataset."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

__all__ = ["DeviceData", "TrainingData", "as_tensor", "n_rows", "take_rows"]


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
    """

    X: Any
    y: np.ndarray
    weight: np.ndarray | None = None
    valid: "TrainingData | None" = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)


class DeviceData:
    """Batches of a :class:`TrainingData` on a device.

    Arrays are moved to the device once and gathered there. Items of a Dataset come
    through a DataLoader.

    Parameters
    ----------
    data : TrainingData
    device : str or torch.device
    loader_params : dict, default=None
        Passed to the DataLoader (``num_workers``, ``pin_memory``, ``collate_fn``).
    """

    def __init__(self, data: TrainingData, device, loader_params=None):
        self.device = torch.device(device)
        self.y = torch.as_tensor(data.y, device=self.device)
        self.weight = (
            None
            if data.weight is None
            else torch.as_tensor(data.weight, device=self.device)
        )
        self.is_dataset = isinstance(data.X, Dataset)
        self.X = data.X if self.is_dataset else as_tensor(data.X, self.device)
        self.loader_params = loader_params or {}

    def iterate(self, indices: np.ndarray) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of each batch, both on the device.

        Parameters
        ----------
        indices : ndarray of shape (n_batches, B)
        """
        rows = torch.as_tensor(indices, device=self.device)
        if not self.is_dataset:
            for row in rows:
                yield take_rows(self.X, row), row
            return
        loader = DataLoader(
            self.X, batch_sampler=indices.tolist(), **self.loader_params
        )
        for row, (x, *_) in zip(rows, loader):
            yield as_tensor(x, self.device), row

    def in_order(self, batch_size: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield (x, rows) of all samples from the first to the last."""
        n = len(self.y)
        for rows in np.split(np.arange(n), range(batch_size, n, batch_size)):
            yield from self.iterate(rows[None])


def as_tensor(X, device):
    """Array, or dictionary of arrays, as tensors on a device; no copy on the CPU."""
    if isinstance(X, Mapping):
        return {key: as_tensor(value, device) for key, value in X.items()}
    if isinstance(X, np.ndarray) and not X.flags.writeable:
        # A memory map handed to a worker is read-only, and torch warns of what it
        # cannot forbid. Nobody writes to it: the view is only ever gathered from.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not")
            return torch.from_numpy(X).to(device)
    return torch.as_tensor(X, device=device)


def take_rows(X, rows):
    """Rows of an array or tensor, or of each value of a dictionary."""
    if isinstance(X, Mapping):
        return {key: value[rows] for key, value in X.items()}
    return X[rows]


def n_rows(X) -> int:
    """Number of samples of an array, a dictionary of arrays, or a Dataset."""
    return len(next(iter(X.values()))) if isinstance(X, Mapping) else len(X)
