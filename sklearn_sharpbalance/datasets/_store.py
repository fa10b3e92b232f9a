"""Where decoded pictures live: in memory, or in a memory-mapped file when large."""

import glob
import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from sklearn_sharpbalance.corruption.pictures import cached_array

__all__ = ["PictureStore", "content_digest", "place_digest"]

LARGE_BYTES = 2**29  # half a GiB
DIGEST_BYTES = 6


class PictureStore:
    """Decides per array whether it is kept in a file.

    A file bears the name of its set, a digest of where the pictures came from and one
    of their names, sizes and times, so that sets share a folder and pictures that were
    changed are decoded anew.

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

        Files of the same set before it was changed are deleted: they are large.

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
        set_name = f"{label}-{place_digest(root)}"
        path = self.folder / f"{set_name}-{content_digest(root, sources)}.npy"
        for other in self.folder.glob(f"{glob.escape(set_name)}-*.npy"):
            if other != path:
                with suppress(OSError):  # some systems keep what is in use
                    other.unlink()
        return path

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


def place_digest(root: Path) -> str:
    """Short digest of where a set lies."""
    return _digest([os.fsencode(root.resolve())])


def content_digest(root: Path, sources: Iterable[Path]) -> str:
    """Short digest of the names, sizes and times of files under a root, in order."""

    def describe(path):
        status = path.stat()
        name = os.fsencode(path.relative_to(root))
        return b"%b\0%d\0%d\n" % (name, status.st_size, status.st_mtime_ns)

    return _digest(map(describe, sources))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
