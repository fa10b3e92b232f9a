"""File names of decoded pictures, derived from the pictures' paths and times."""

import glob
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_path"]

DIGEST_BYTES = 6


def cache_path(folder: Path, label: str, root: Path, sources: Iterable[Path]) -> Path:
    """Return the file for an array of decoded pictures; delete outdated files.

    Its name consists of the name of the dataset, a digest of its path, and a digest of
    the names, sizes and modification times of the pictures. So datasets can share a
    folder, and changed pictures are decoded again. The files of a dataset before a
    change are deleted, since they are large.

    Parameters
    ----------
    folder : Path
        Folder of these files.
    label : str
        Name of the dataset.
    root : Path
        Folder or file of the dataset.
    sources : iterable of Path
        Files that the array is made from, at or under ``root``.
    """
    set_name = f"{label}-{_digest([os.fsencode(root.resolve())])}"
    path = folder / f"{set_name}-{_digest(_states(root, sources))}.npy"
    for other in folder.glob(f"{glob.escape(set_name)}-*.npy"):
        if other != path:
            with suppress(OSError):  # some systems do not delete files in use
                other.unlink()
    return path


def _states(root, sources):
    """Yield name, size and modification time of each file."""
    for path in sources:
        status = path.stat()
        name = os.fsencode(path.relative_to(root))
        yield b"%b\0%d\0%d\n" % (name, status.st_size, status.st_mtime_ns)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
