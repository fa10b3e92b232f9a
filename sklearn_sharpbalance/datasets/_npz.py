"""Picture sets in one ``.npz`` file: plain arrays, or pictures packed as JPEG."""

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from sklearn.utils import Bunch

from sklearn_sharpbalance.corruption.pictures import cached_array, opened
from sklearn_sharpbalance.datasets._store import PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_npz"]

# More are no codes of classes, but numbers of another kind: a list of as many names
# could fill the memory.
MAX_CLASSES = 2**24
PACKED = ("jpeg", "offsets", "labels", "is_test", "class_names")
LAYOUTS = (
    "(jpeg, offsets, labels, is_test, class_names), (images, labels[, is_test]"
    "[, class_names]) or (x_train, y_train, x_test, y_test[, class_names])"
)


def read_npz(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """Read ``root``, the path of the file itself. Splits: "train", "test", "all"."""
    if not root.is_file():
        raise FileNotFoundError(
            f"There is no file {root}. Pass the path of an .npz file with the arrays "
            f"{LAYOUTS}."
        )
    if split not in ("train", "test", "all"):
        raise InvalidInputError(
            f"split must be 'train', 'test' or 'all', got {split!r}."
        )
    with _opened(root) as arrays:
        label = f"{root.stem}-{split}"
        if all(key in arrays for key in PACKED):
            return _read_packed(arrays, split, label, root, store)
        images, labels = _plain_arrays(arrays, split, root)
        names = _class_names(arrays) if "class_names" in arrays else None
    images = images[..., None] if images.ndim == 3 else images
    labels = _check_labels(labels, names, root)
    names = names or [str(label) for label in range(int(labels.max(initial=-1)) + 1)]
    path = store.path(label, images.shape, root, [root])
    if path is not None:
        images = cached_array(path, images.shape, partial(np.copyto, src=images))
    return Bunch(images=images, labels=labels, class_names=names)


@contextmanager
def _opened(root: Path) -> Iterator[Any]:
    """The arrays of a file by name; it is named if it is damaged or no ``.npz``."""
    try:
        arrays = np.load(root)
        if isinstance(arrays, np.ndarray):
            raise InvalidInputError(
                f"{root} holds one array and no labels. Make an .npz file of both: "
                "np.savez(path, images=images, labels=labels)."
            )
        with arrays:
            yield arrays
    except InvalidInputError:
        raise
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise InvalidInputError(
            f"{root} cannot be read as an .npz file ({error}): it is damaged or of "
            "another kind. Make it with np.savez, of numbers and strings."
        ) from error


def _class_names(arrays) -> list[str]:
    names = arrays["class_names"].ravel()
    if names.dtype.kind == "S":
        return [name.decode() for name in names.tolist()]
    return [str(name) for name in names.tolist()]


def _plain_arrays(arrays, split: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    if "x_train" in arrays:
        parts = ("train", "test") if split == "all" else (split,)
        _check_arrays(arrays, root, *(f"{kind}_{p}" for p in parts for kind in "xy"))
        pairs = [_checked(arrays[f"x_{p}"], arrays[f"y_{p}"], root) for p in parts]
        shapes = [images.shape[1:] for images, _ in pairs]
        if shapes[0] != shapes[-1]:
            raise InvalidInputError(
                f"Pictures of x_train and x_test in {root} must have one shape, got "
                f"{shapes[0]} and {shapes[1]}. Read one split at a time."
            )
        images, labels = zip(*pairs)
        return np.concatenate(images), np.concatenate(labels)
    _check_arrays(arrays, root, "images", "labels")
    images, labels = _checked(arrays["images"], arrays["labels"], root)
    if "is_test" not in arrays:
        if split == "test":
            raise InvalidInputError(
                f"{root} does not say which of its pictures are for tests. Add an "
                "array is_test of one bool per picture to it, or read split='all' and "
                "divide the pictures yourself."
            )
        return images, labels
    is_test = _check_is_test(arrays["is_test"], len(images), root)
    rows = np.ones_like(is_test) if split == "all" else is_test == (split == "test")
    return images[rows], labels[rows]


def _check_arrays(arrays, root: Path, *needed: str) -> None:
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InvalidInputError(
            f"{root} holds the arrays {', '.join(arrays)}; expected {LAYOUTS}. Missing "
            f"for this split: {', '.join(missing)}."
        )


def _checked(images, labels, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and as many labels."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InvalidInputError(
            f"Pictures in {root} must be uint8 of shape (N, H, W, C), got "
            f"{images.dtype} of shape {images.shape}."
        )
    return images, _flat_labels(labels, len(images), root)


def _check_is_test(is_test: np.ndarray, n_images: int, root: Path) -> np.ndarray:
    """Which pictures are for tests, as bools of shape (N,)."""
    if is_test.size != n_images:
        raise InvalidInputError(
            f"is_test in {root} must be one bool per picture, got {is_test.size} for "
            f"{n_images} pictures."
        )
    if is_test.dtype.kind not in "biuf" or not np.isin(is_test, (0, 1)).all():
        values = np.unique(is_test)
        raise InvalidInputError(
            f"is_test in {root} must be one bool per picture, got {is_test.dtype} with "
            f"values from {values[0]} to {values[-1]}. Write True for tests."
        )
    return is_test.astype(bool).ravel()


def _flat_labels(labels: np.ndarray, n_images: int, root: Path) -> np.ndarray:
    """One label per picture."""
    labels = labels.ravel()
    if len(labels) != n_images:
        raise InvalidInputError(
            f"{root} must have one label per picture, got {len(labels)} labels for "
            f"{n_images} pictures."
        )
    return labels


def _check_labels(labels: np.ndarray, names, root: Path) -> np.ndarray:
    """Class codes as int64."""
    is_number = labels.dtype.kind in "biuf" and np.isfinite(labels).all()
    if not is_number or (labels != np.floor(labels)).any():
        raise InvalidInputError(
            f"Labels in {root} must be whole numbers from 0, got {labels[:3].tolist()}"
            f" of {labels.dtype}. Number the classes and keep their names in "
            "class_names: class_names, labels = np.unique(labels, return_inverse=True)."
        )
    highest = (MAX_CLASSES if names is None else len(names)) - 1
    if len(labels) and not 0 <= labels.min() <= labels.max() <= highest:
        limit = "" if names is None else f" to {highest}, by the names of the classes"
        raise InvalidInputError(
            f"Labels in {root} must count from 0{limit}, got {labels.min()} to "
            f"{labels.max()}. Renumber them, or leave out pictures without a class."
        )
    return labels.astype(np.int64)


def _read_packed(arrays, split, label, root: Path, store: PictureStore) -> Bunch:
    """Pictures as JPEG streams, one after the other in a single array of bytes.

    Such files lie sorted by class; a fixed shuffle makes any leading slice a fair
    sample.
    """
    jpeg, offsets = arrays["jpeg"], arrays["offsets"]
    names = _class_names(arrays)
    labels = _flat_labels(arrays["labels"], len(offsets) - 1, root)
    labels = _check_labels(labels, names, root)
    order = np.random.default_rng(0).permutation(len(labels))
    if split != "all":
        is_test = _check_is_test(arrays["is_test"], len(labels), root)
        order = order[is_test[order] == (split == "test")]

    def decode(row: int) -> np.ndarray:
        stream = io.BytesIO(jpeg[offsets[row] : offsets[row + 1]].tobytes())
        with opened(stream, f"Picture {row} of {root}") as packed:
            inks = packed.mode not in ("L", "RGB", "RGBA")  # CMYK is no colours
            picture = np.asarray(packed.convert("RGB") if inks else packed)
        return picture[..., None] if picture.ndim == 2 else picture

    def fill(out: np.ndarray) -> None:
        for target, row in zip(out, order):
            picture = decode(row)
            # A grey picture among coloured ones has the same value in each channel.
            if picture.shape not in (target.shape, (*target.shape[:2], 1)):
                raise InvalidInputError(
                    f"Picture {row} of {root} has shape {picture.shape}, picture "
                    f"{order[0]} has {target.shape}. Pack pictures of one size and "
                    "number of channels."
                )
            target[...] = picture

    shape = (len(order), *(decode(order[0]).shape if len(order) else (0, 0, 3)))
    return Bunch(
        images=store.array(label, shape, fill, root, [root]),
        labels=labels[order],
        class_names=names,
    )
