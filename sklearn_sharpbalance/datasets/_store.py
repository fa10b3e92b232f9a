"""Where decoded pictures live: in memory, or in a memory-mapped file when large."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.corruption.pictures import cached_array

__all__ = ["PictureStore"]

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

    def path(self, label: str, shape: tuple[int, ...]) -> Path | None:
        """File for an array, or None if it is to stay in memory."""
        large = float(np.prod(shape, dtype=float)) >= LARGE_BYTES
        if self.mmap is True or (self.mmap == "auto" and large):
            return self.folder / f"{label}.npy"
        return None

    def array(
        self,
        label: str,
        shape: tuple[int, ...],
        fill: Callable[[np.ndarray], None],
        source: Path,
    ) -> np.ndarray:
        """The array that ``fill`` writes; a file older than ``source`` is made anew."""
        path = self.path(label, shape)
        if path is not None and path.exists() and _older(path, source):
            path.unlink()
        return cached_array(path, shape, fill)


def _older(path: Path, source: Path) -> bool:
    return path.stat().st_mtime < source.stat().st_mtime
