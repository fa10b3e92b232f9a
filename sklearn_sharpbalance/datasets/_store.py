"""Keep decoded pictures in memory, or in a memory-mapped file if they are large."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.corruption._cache_names import cache_path
from sklearn_sharpbalance.corruption.pictures import cached_array

__all__ = ["DECODED", "PictureStore"]

DECODED = "decoded"  # default folder for the files, inside the folder of the dataset
LARGE_BYTES = 2**29  # half a GiB


class PictureStore:
    """Create arrays of decoded pictures, in memory or in ``.npy`` files.

    Parameters
    ----------
    mmap : bool or "auto"
        Whether arrays are memory-mapped; "auto" maps those of half a GiB and more.
    folder : Path
        Folder of the ``.npy`` files.
    """

    def __init__(self, mmap: bool | str, folder: Path) -> None:
        self.mmap = mmap
        self.folder = folder

    def path(
        self, label: str, shape: tuple[int, ...], root: Path, sources: Iterable[Path]
    ) -> Path | None:
        """Return the file of an array, or None if the array stays in memory.

        Parameters
        ----------
        label : str
            Name of the dataset.
        shape : tuple of int
        root : Path
            Folder or file of the dataset.
        sources : iterable of Path
            Files that the array is made from, at or under ``root``.
        """
        is_large = float(np.prod(shape, dtype=float)) >= LARGE_BYTES
        if self.mmap is True or (self.mmap == "auto" and is_large):
            return cache_path(self.folder, label, root, sources)
        return None

    def array(
        self,
        *,
        label: str,
        shape: tuple[int, ...],
        fill: Callable[[np.ndarray], None],
        root: Path,
        sources: Iterable[Path],
    ) -> np.ndarray:
        """Return the array that ``fill`` writes, from its file if that is up to date.

        Parameters
        ----------
        label, shape, root, sources
            See :meth:`path`.
        fill : callable
            Writes the values into the array that it is given.
        """
        return cached_array(self.path(label, shape, root, sources), shape, fill)
