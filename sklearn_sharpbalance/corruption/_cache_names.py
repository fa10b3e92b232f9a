"""Names of files for decoded pictures, which tell where those came from."""

import glob
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_path"]

DIGEST_BYTES = 6


def cache_path(folder: Path, label: str, root: Path, sources: Iterable[Path]) -> Path:
    """File for an array of decoded pictures.

    It bears the name of the set, a digest of where the pictures lie and one of their
    names, sizes and times, so that sets share a folder and pictures that were changed
    are decoded anew. Files of the same set before it was changed are deleted: they are
    large.

    Parameters
    ----------
    folder : Path
        Where such files are.
    label : str
        What the set is called.
    root : Path
        Where the set lies.
    sources : iterable of Path
        Files that the array is made from, at or under ``root``.
    """
    set_name = f"{label}-{_digest([os.fsencode(root.resolve())])}"
    path = folder / f"{set_name}-{_digest(_states(root, sources))}.npy"
    for other in folder.glob(f"{glob.escape(set_name)}-*.npy"):
        if other != path:
            with suppress(OSError):  # some systems keep what is in use
                other.unlink()
    return path


def _states(root, sources):
    """Name, size and time of each file, in order."""
    for path in sources:
        status = path.stat()
        name = os.fsencode(path.relative_to(root))
        yield b"%b\0%d\0%d\n" % (name, status.st_size, status.st_mtime_ns)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
