"""Decode picture files into one array, in memory or memory-mapped."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = [
    "cached_array",
    "class_folders",
    "decode_pictures",
    "find_pictures",
    "picture_shape",
    "read_image_folder",
]

PICTURE_SUFFIXES = {  # those of torchvision's ImageFolder
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".ppm",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
}

# Errors of Pillow's decoders; the last one for huge sizes in damaged files.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

FULL = ("I", "TIFF")  # 32 bits a pixel; other files of mode "I" have 16


def cached_array(
    path, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]
) -> np.ndarray:
    """Return a uint8 array that ``fill`` writes once and a ``.npy`` file stores.

    Parameters
    ----------
    path : str, Path or None
        The file. If it already contains an array of this shape, the array is
        memory-mapped and ``fill`` is not called; a damaged file is replaced. None keeps
        the array in memory.
    shape : tuple of int
        Shape of the array.
    fill : callable
        Writes the values into the array that it is given.

    Returns
    -------
    ndarray of shape ``shape``, uint8
        Memory-mapped and read-only if ``path`` is given.
    """
    if path is None:
        out = np.empty(shape, dtype=np.uint8)
        fill(out)
        return out
    path = Path(path)
    stored = _stored(path)
    if stored is not None and stored.shape == shape:
        return stored
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write to a unique name and rename it when complete: the write may be interrupted,
    # and other threads and processes may write the same array.
    writer = f"{os.getpid()}-{secrets.token_hex(4)}"
    unfinished = path.with_suffix(f".{writer}.part")
    try:
        _write(unfinished, shape, fill)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    return np.load(path, mmap_mode="r")


def _stored(path: Path) -> np.ndarray | None:
    """Memory-map the uint8 array in a file; return None if there is none."""
    try:
        stored = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return stored if stored.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], fill: Callable) -> None:
    target = np.lib.format.open_memmap(path, "w+", dtype=np.uint8, shape=shape)
    fill(target)
    target.flush()


def find_pictures(
    root, *, class_names=None
) -> tuple[list[Path], np.ndarray, list[str]]:
    """List a tree ``<class>/.../<picture>``.

    Parameters
    ----------
    root : str or Path
        Folder with one folder per class.
    class_names : sequence of str, default=None
        Classes in the order of their labels; None takes the folders found, sorted.

    Returns
    -------
    paths : list of Path
        Files, sorted within each class.
    labels : ndarray of shape (N,), int64
    class_names : list of str
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"There is no folder {root}. It should contain one folder of pictures per "
            "class."
        )
    given = () if class_names is None else class_names
    names = [str(name) for name in given] or class_folders(root)
    groups = [_pictures_under(root / name) for name in names]
    paths = [path for group in groups for path in group]
    if not paths:
        raise FileNotFoundError(
            f"{root} contains no folders of pictures, one per class. Known suffixes: "
            f"{', '.join(sorted(PICTURE_SUFFIXES))}."
        )
    counts = [len(group) for group in groups]
    return paths, np.repeat(np.arange(len(names), dtype=np.int64), counts), names


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    found = (p for p in root.iterdir() if p.is_dir())
    return sorted(p.name for p in found if not p.name.startswith("."))


def decode_pictures(paths: list[Path], *, cache=None) -> np.ndarray:
    """Decode files of one size as RGB, uint8 of shape (N, H, W, 3).

    Parameters
    ----------
    paths : list of Path
        Files that Pillow can read.
    cache : str, Path or None, default=None
        See :func:`cached_array`.
    """

    def fill(out: np.ndarray) -> None:
        for row, path in zip(out, paths):
            picture = _read(path)
            if picture.shape != row.shape:
                raise InvalidInputError(
                    f"{path} is {picture.shape[0]} x {picture.shape[1]} pixels, the "
                    f"first picture {row.shape[0]} x {row.shape[1]}. Resize them to "
                    "one size."
                )
            row[...] = picture

    return cached_array(cache, (len(paths), *picture_shape(paths[0])), fill)


def read_image_folder(
    root, *, class_names=None, cache=None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Decode a tree ``<class>/.../<picture>`` into one array.

    Parameters
    ----------
    root : str or Path
        Folder with one folder per class. Classes and, in each, paths are sorted.
    class_names : sequence of str, default=None
        Classes in the order of their labels; None takes the folders found.
    cache : str or Path, default=None
        A ``.npy`` file that the pictures are decoded into and memory-mapped from; it is
        reused if the number and size of the pictures are the same. None decodes into
        memory.

    Returns
    -------
    images : ndarray of shape (N, H, W, 3), uint8
    labels : ndarray of shape (N,), int64
    class_names : list of str
    """
    paths, labels, names = find_pictures(root, class_names=class_names)
    return decode_pictures(paths, cache=cache), labels, names


def picture_shape(path: Path) -> tuple[int, int, int]:
    """Return height, width and the three channels of one file."""
    with opened(path) as picture:
        return picture.height, picture.width, 3


def _pictures_under(folder: Path) -> list[Path]:
    tree = os.walk(folder, followlinks=True)  # as torchvision does
    files = (Path(place, name) for place, _, names in tree for name in names)
    found = (p for p in files if p.suffix.lower() in PICTURE_SUFFIXES)
    return sorted(p for p in found if not _is_hidden(p.relative_to(folder)))


def _is_hidden(path: Path) -> bool:
    """Whether a file or a folder of the path is hidden."""
    return any(part.startswith(".") for part in path.parts)


def _read(path: Path) -> np.ndarray:
    with opened(path) as picture:
        if picture.mode.startswith("I") and (picture.mode, picture.format) != FULL:
            # 16 bits a pixel: Pillow would clip them at 255 instead of scaling.
            grey = (np.asarray(picture) >> 8).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=-1)
        return np.asarray(picture.convert("RGB"))


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Yield an open picture; raise an error with its path if it is damaged."""
    try:
        with Image.open(path) as picture:
            yield picture
    except FileNotFoundError:
        raise
    except DECODING_ERRORS as error:
        raise InvalidInputError(
            f"{path} cannot be decoded ({error}): it is damaged or not a picture. "
            "Replace or remove it."
        ) from error
