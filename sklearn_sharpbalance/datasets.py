"""Read folders of image files as one array: :func:`load_images`."""

import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["load_images"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Errors of Pillow's decoders; the last one for huge sizes in damaged files.
DECODING_ERRORS = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
FULL = ("I", "TIFF")  # 32 bits a pixel; other files of mode "I" have 16


def load_images(root, *, size=None):
    """Read the images ``<root>/<class>/.../<file>`` as one array.

    Parameters
    ----------
    root : str or Path
        Folder with one folder per class, as for torchvision's ``ImageFolder``.
    size : int or (int, int), default=None
        Side, or height and width, that all images are resized to. None keeps their
        size, which must then be the same.

    Returns
    -------
    images : ndarray of shape (N, H, W, 3), uint8
        All formats as RGB, sorted by path.
    labels : ndarray of shape (N,), str
        Names of the class folders.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from sklearn_sharpbalance.datasets import load_images
    >>> root = Path(tempfile.mkdtemp())
    >>> for name, width in (("cat", 20), ("dog", 30)):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (width, 25)).save(root / name / "0.png")
    >>> images, labels = load_images(root, size=32)
    >>> images.shape, labels.tolist()
    ((2, 32, 32, 3), ['cat', 'dog'])
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"There is no folder {root}. It should have a folder of images per class."
        )
    groups = {name: _images_under(root / name) for name in class_folders(root)}
    empty = [name for name, paths in groups.items() if not paths]
    if empty or not groups:
        raise FileNotFoundError(
            f"There is no image in {root / empty[0] if empty else root}. Pass a folder "
            "that has a folder of images per class. Known suffixes: "
            f"{', '.join(SUFFIXES)}."
        )
    labels = np.repeat(list(groups), [len(paths) for paths in groups.values()])
    return _read_all([p for paths in groups.values() for p in paths], size), labels


def class_folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    found = (p for p in root.iterdir() if p.is_dir())
    return sorted(p.name for p in found if not p.name.startswith("."))


def _images_under(folder: Path) -> list[Path]:
    """Return the sorted image files at any depth, without hidden ones."""
    tree = os.walk(folder, followlinks=True)  # as torchvision does
    files = (Path(place, name) for place, _, names in tree for name in names)
    return sorted(
        path
        for path in files
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _read_all(paths: Sequence[Path], size) -> np.ndarray:
    height_width = _check_size(size)
    first = _read(paths[0], height_width)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)
    for row, path in zip(images, paths):
        image = _read(path, height_width)
        if image.shape != row.shape:
            raise InvalidInputError(
                f"{path} has {image.shape[0]} x {image.shape[1]} pixels, the first "
                f"image {row.shape[0]} x {row.shape[1]}. Pass size= to resize them."
            )
        row[...] = image
    return images


def _check_size(size: Any) -> tuple[int, int] | None:
    """Return height and width, or None for the size of the files."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    is_valid = [isinstance(n, Integral) and int(n) > 0 for n in sides]
    if is_valid != [True, True]:
        raise InvalidInputError(
            f"size must be a positive integer, or height and width, got {size!r}."
        )
    return int(sides[0]), int(sides[1])


def _read(path: Path, height_width: tuple[int, int] | None) -> np.ndarray:
    """Return an image as (H, W, 3); raise an error with its path if it is damaged."""
    try:
        with Image.open(path) as file:
            image = _as_rgb(file)
    except DECODING_ERRORS as error:
        raise InvalidInputError(
            f"{path} cannot be decoded ({error}): it is damaged or not an image. "
            "Replace or remove it."
        ) from error
    if height_width is not None and image.size != height_width[::-1]:
        image = image.resize(height_width[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


def _as_rgb(file: Image.Image) -> Image.Image:
    if file.mode.startswith("I") and (file.mode, file.format) != FULL:
        # 16 bits a pixel: Pillow would clip them at 255 instead of scaling.
        file = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
    return file.convert("RGB")
