"""Items of a Dataset that are read beside the training, and may draw what they like."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import Dataset

from sklearn_sharpbalance.members.state import seeded

__all__ = ["own_draws"]


@contextmanager
def own_draws(X: Any, seed: int = 0) -> Iterator[None]:
    """Let items of a Dataset draw from generators seeded here.

    Those of torch, numpy and Python are as they were after the block. Anything but a
    Dataset draws nothing, and the block is run as it is.

    Parameters
    ----------
    X : ndarray, dict or Dataset
        What the block reads.
    seed : int, default=0

    Examples
    --------
    >>> import torch
    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(2))
    >>> before = torch.get_rng_state()
    >>> with own_draws(pairs, seed=5):
    ...     first = torch.rand(1)
    >>> with own_draws(pairs, seed=5):
    ...     torch.equal(torch.rand(1), first)
    True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    if not isinstance(X, Dataset):
        yield
        return
    with seeded("cpu"):
        seeded.start(seed)
        yield
