"""Picture datasets in one ``.npz`` file."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from sklearn.utils import Bunch

from sklearn_sharpbalance.corruption.pictures import cached_array
from sklearn_sharpbalance.datasets._store import PictureStore
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["read_npz"]

# Larger labels are not class codes, and a list of that many names could exhaust the
# memory.
MAX_CLASSES = 2**24
LAYOUTS = (
    "(images, labels[, is_test][, class_names]) or "
    "(x_train, y_train, x_test, y_test[, class_names])"
)


def read_npz(root: Path, split: str, download: bool, store: PictureStore) -> Bunch:
    """Read one split, "train", "test" or "all", of the file ``root``."""
    if not root.is_file():
        raise FileNotFoundError(
            f"There is no file {root}. Pass the path of an .npz file with the arrays "
            f"{LAYOUTS}."
        )
    if split not in ("train", "test", "all"):
        raise InvalidInputError(
            f"split must be 'train', 'test' or 'all', got {split!r}."
        )
    with _open_npz(root) as arrays:
        if "x_train" in arrays:
            images, labels = _read_train_and_test(arrays, split, root)
        else:
            images, labels = _read_images(arrays, split, root)
        names = _class_names(arrays) if "class_names" in arrays else None
    if images.ndim == 3:
        images = images[..., None]
    labels = _check_labels(labels, names, root)
    if names is None:
        names = [str(label) for label in range(int(labels.max(initial=-1)) + 1)]
    path = store.path(f"{root.stem}-{split}", images.shape, root, [root])
    if path is not None:
        images = cached_array(path, images.shape, partial(np.copyto, src=images))
    return Bunch(images=images, labels=labels, class_names=names)


@contextmanager
def _open_npz(root: Path) -> Iterator[Any]:
    """Yield the arrays of a file by name; raise if it is damaged or no ``.npz``."""
    try:
        arrays = np.load(root)
        if isinstance(arrays, np.ndarray):
            raise InvalidInputError(
                f"{root} contains one array and no labels. Write an .npz file with "
                "both: np.savez(path, images=images, labels=labels)."
            )
        with arrays:
            yield arrays
    except InvalidInputError:
        raise
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise InvalidInputError(
            f"{root} cannot be read as an .npz file ({error}): it is damaged or has "
            "another format. Write it with np.savez, from numbers and strings."
        ) from error


def _class_names(arrays) -> list[str]:
    names = arrays["class_names"].ravel()
    if names.dtype.kind == "S":
        return [name.decode() for name in names.tolist()]
    return [str(name) for name in names.tolist()]


def _read_train_and_test(arrays, split: str, root: Path):
    """Read the arrays x_train, y_train, x_test and y_test."""
    parts = ["train", "test"] if split == "all" else [split]
    images, labels = [], []
    for part in parts:
        _check_names(arrays, [f"x_{part}", f"y_{part}"], root)
        images.append(_check_images(arrays[f"x_{part}"], root))
        labels.append(_flat_labels(arrays[f"y_{part}"], len(images[-1]), root))
    if images[0].shape[1:] != images[-1].shape[1:]:
        raise InvalidInputError(
            f"Pictures of x_train and x_test in {root} must have one shape, got "
            f"{images[0].shape[1:]} and {images[-1].shape[1:]}. Read one split at a "
            "time."
        )
    return np.concatenate(images), np.concatenate(labels)


def _read_images(arrays, split: str, root: Path):
    """Read the arrays images and labels, and is_test if there is one."""
    _check_names(arrays, ["images", "labels"], root)
    images = _check_images(arrays["images"], root)
    labels = _flat_labels(arrays["labels"], len(images), root)
    if "is_test" not in arrays:
        if split == "test":
            raise InvalidInputError(
                f"{root} does not say which of its pictures are for tests. Add an "
                "array is_test of one bool per picture to it, or read split='all' and "
                "split the pictures yourself."
            )
        return images, labels
    is_test = _check_is_test(arrays["is_test"], len(images), root)
    if split == "all":
        return images, labels
    rows = is_test if split == "test" else ~is_test
    return images[rows], labels[rows]


def _check_names(arrays, needed: list[str], root: Path) -> None:
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InvalidInputError(
            f"{root} contains the arrays {', '.join(arrays)}; expected {LAYOUTS}. "
            f"Missing for this split: {', '.join(missing)}."
        )


def _check_images(images: np.ndarray, root: Path) -> np.ndarray:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise InvalidInputError(
            f"Pictures in {root} must be uint8 of shape (N, H, W, C), got "
            f"{images.dtype} of shape {images.shape}."
        )
    return images


def _check_is_test(is_test: np.ndarray, n_images: int, root: Path) -> np.ndarray:
    """Return which pictures are for tests, as bools of shape (N,)."""
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
    """Return one label per picture, as an array of shape (N,)."""
    labels = labels.ravel()
    if len(labels) != n_images:
        raise InvalidInputError(
            f"{root} must have one label per picture, got {len(labels)} labels for "
            f"{n_images} pictures."
        )
    return labels


def _check_labels(labels: np.ndarray, names, root: Path) -> np.ndarray:
    """Return class codes as int64."""
    is_number = labels.dtype.kind in "biuf" and np.isfinite(labels).all()
    if not is_number or (labels != np.floor(labels)).any():
        raise InvalidInputError(
            f"Labels in {root} must be whole numbers from 0, got {labels[:3].tolist()}"
            f" of {labels.dtype}. Number the classes and store their names in "
            "class_names: class_names, labels = np.unique(labels, return_inverse=True)."
        )
    highest = (MAX_CLASSES if names is None else len(names)) - 1
    if len(labels) and not 0 <= labels.min() <= labels.max() <= highest:
        limit = "" if names is None else f" to {highest}, the number of class_names - 1"
        raise InvalidInputError(
            f"Labels in {root} must be numbered from 0{limit}, got {labels.min()} to "
            f"{labels.max()}. Renumber them, or remove pictures without a class."
        )
    return labels.astype(np.int64)
