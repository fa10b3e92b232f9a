"""Where decoded pictures live: in memory, or in a memory-mapped file when large."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.corruption._cache_names import cache_path
from sklearn_sharpbalance.corruption.pictures import cached_array

__all__ = ["DECODED", "PictureStore"]

DECODED = "decoded"  # folder beside the set, where none is asked for
LARGE_BYTES = 2**29  # half a GiB


class PictureStore:
    """Decides per array whether it is kept in a file.

    Parameters
    ----------
    mmap : bool or "auto"
        Whether arrays are memory-mapped; "auto" does so from half a GiB.
    folder : Path
        Where the ``.npy`` files go.
    """

    def __init__(self, mmap: bool | str, folder: Path) -> None:
        self.mmap = mmap
        self.folder = folder

    def path(
        self, label: str, shape: tuple[int, ...], root: Path, sources: Iterable[Path]
    ) -> Path | None:
        """File for an array, or None if it is to stay in memory.

        Parameters
        ----------
        label : str
            What the set is called.
        shape : tuple of int
        root : Path
            Where the set lies.
        sources : iterable of Path
            Files that the array is made from, at or under ``root``.
        """
        large = float(np.prod(shape, dtype=float)) >= LARGE_BYTES
        if not (self.mmap is True or (self.mmap == "auto" and large)):
            return None
        return cache_path(self.folder, label, root, sources)

    def array(
        self,
        label: str,
        shape: tuple[int, ...],
        fill: Callable[[np.ndarray], None],
        root: Path,
        sources: Iterable[Path],
    ) -> np.ndarray:
        """The array that ``fill`` writes, or wrote before from these very files."""
        return cached_array(self.path(label, shape, root, sources), shape, fill)
